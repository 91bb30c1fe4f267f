"""report.html shows any run, holds no more than it should, and nothing a model wrote can act in it."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from fake_run import NASTY, make_run
from oncurve.board.charts import ends, thinned
from oncurve.board.report import escaped_json, render, report_data, write_report
from oncurve.board.text import shown, visible
from oncurve.runlog import EvalRow, RunLog, RunLogError


class Page(HTMLParser):
    """What a browser makes of a page before any script runs."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.scripts: list[str] = []
        self.policy = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if dict(attrs).get("http-equiv") == "Content-Security-Policy":
            self.policy = dict(attrs)["content"] or ""

    def handle_data(self, data: str) -> None:
        if self.tags and self.tags[-1] == "script" and data.strip():
            self.scripts.append(data)


def data_of(page: str) -> dict[str, Any]:
    [text] = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    return json.loads(text)


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("runs") / "demo")


@pytest.fixture(scope="module")
def page(demo: Path) -> str:
    path = write_report(demo)
    assert path == demo / "report.html"
    return path.read_text(encoding="utf-8")


# -- one inert file ----------------------------------------------------------------------------------


def test_the_page_is_one_file_that_loads_nothing(page: str, demo: Path) -> None:
    parsed = Page(page)
    assert parsed.policy.startswith(
        "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"
    )
    assert {"src", "onload", "onerror", "action"}.isdisjoint(name for name, _ in parsed.attributes)
    assert [value for name, value in parsed.attributes if name == "href"] == ["#curves"]
    assert parsed.tags.count("script") == 3
    assert {"link", "img", "iframe", "object", "base", "form"}.isdisjoint(parsed.tags)
    assert "url(" not in page
    assert "uPlot" in parsed.scripts[1]
    assert "The MIT License (MIT)" in parsed.scripts[1]
    assert sorted(path.name for path in demo.iterdir()) == ["config.toml", "report.html", "run.sqlite"]


def test_a_nasty_completion_is_inert_and_visible(page: str) -> None:
    assert "onerror=alert(1)" in page
    for dangerous in ("<img", "</script><", "\x1b", "\u202e", "\u2028", "\x00", "{{"):
        assert dangerous not in page, repr(dangerous)
    text = data_of(page)["held_out"]["prompts"][0]["sides"][0]["greedy"][0]["text"]
    assert text == (
        "[/b] ␛[2J </script><img src=x onerror=alert(1)> <!-- ⟨U+202E⟩gnp.exe & ⟨U+D800⟩ ⟨U+2028⟩ end \\boxed{2}"
    )


def test_the_script_never_makes_html_of_text() -> None:
    static = Path(__file__).parents[2] / "src/oncurve/board/static"
    script = "".join((static / name).read_text() for name in ("tools.js", "curves.js", "report.js"))
    for way in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "DOMParser", "Function("):
        assert way not in script


def test_json_in_a_script_cannot_end_it() -> None:
    value = {"</script>": "<!-- & \u2028\u2029 \ud800 ü"}
    text = escaped_json(value)
    assert text == '{"\\u003c/script\\u003e":"\\u003c!-- \\u0026 \\u2028\\u2029 \\ud800 ü"}'
    assert json.loads(text) == value


def test_the_name_and_what_is_put_in_are_not_read_as_template(tmp_path: Path) -> None:
    run = make_run(tmp_path / "<b>{{REPORT_JS}}&", sft_steps=1, iterations=0)
    with RunLog.open(run) as log:
        log.metrics("grpo", 1, 1, {"{{REPORT_CSS}}</script>": 1.0})
    page = render(report_data(run))
    assert "<title>&lt;b&gt;{{REPORT_JS}}&amp; · Oncurve</title>" in page
    assert data_of(page)["name"] == "<b>{{REPORT_JS}}&"
    assert Page(page).tags.count("script") == 3


# -- what it shows -----------------------------------------------------------------------------------


def test_the_head_says_what_was_learned(page: str) -> None:
    data = data_of(page)
    assert (data["status"], data["complete"], data["progress"]) == ("finished", True, "GRPO iteration 60 of 60")
    main = [row for row in data["estimates"] if row["main"]]
    assert [(row["kind"], row["name"]) for row in main] == [("greedy", "accuracy"), ("sampled", "pass@1")]
    assert main[0]["labels"] == ["before GRPO", "after iteration 60"]
    assert main[0]["before"] == {"value": 0.062, "low": 0.0, "high": 0.132, "n": 64}
    assert main[0]["after"]["value"] == 0.859
    assert {row["name"] for row in data["estimates"] if row["kind"] == "sampled"} == {
        "pass@1",
        "pass@4",
        "accuracy",
        "format",
        "chain_right",
    }
    assert data["findings"][0] == {
        "tone": "good",
        "text": "Held-out accuracy, greedy rose from 0.062 to 0.859: the 95% intervals do not overlap.",
    }
    assert data["recipe"][4] == [
        "GRPO",
        "iterations 60, prompts_per_iteration 32, group_size 8, learning_rate 0.0008, kl_coef 0.02, clip_low 0.2, "
        "clip_high 0.2",
    ]
    assert ["sampled for training", "420,000 tokens"] in data["facts"]


def test_every_recorded_metric_has_a_curve(page: str) -> None:
    titles = [chart["title"] for part in data_of(page)["sections"] for chart in part["charts"]]
    assert titles == [
        "Held-out prompts, greedy",
        "Reward and its parts",
        "Spread inside a group",
        "Groups that teach nothing",
        "Length of completions",
        "Cut at the token limit",
        "Entropy",
        "Distance from the reference",
        "Clipped tokens",
        "Gradient norm",
        "Learning rate",
        "Loss",
        "Sampler against trainer",
        "Seconds per iteration, by phase",
        "Tokens per second",
        "SFT loss",
        "SFT gradient norm",
        "SFT learning rate",
        "my_metric",
        "unscored",
    ]
    charts = {chart["title"]: chart for part in data_of(page)["sections"] for chart in part["charts"]}
    assert [s["label"] for s in charts["Reward and its parts"]["series"]] == ["reward", "accuracy", "format"]
    assert charts["Held-out prompts, greedy"]["x"] == [0, 10, 20, 30, 40, 50, 60]
    assert charts["my_metric"]["series"][0]["y"][6] is None  # NaN in iteration 7: a gap.
    assert all(chart["look_for"] and chart["glossary"] for title, chart in charts.items() if not title.islower())


def test_the_same_prompts_before_and_after(page: str) -> None:
    held_out = data_of(page)["held_out"]
    assert held_out["measure"] == "accuracy"
    assert held_out["counts"] == {"mended": 51, "wrong": 9, "right": 4}
    assert [prompt["outcome"] for prompt in held_out["prompts"]] == ["mended"] * 4 + ["wrong"] * 2 + ["right"] * 2
    for prompt in held_out["prompts"]:
        assert [len(side["greedy"]) for side in prompt["sides"]] == [1, 1]
        assert [len(side["sampled"]) for side in prompt["sides"]] == [3, 3]


def test_training_groups_are_whole_and_best_first(page: str) -> None:
    training = data_of(page)["training"]
    assert [(part["iteration"], part["groups"]) for part in training] == [(1, 4), (31, 4), (60, 4)]
    group = training[0]["shown"][0]
    advantages = [completion["advantage"] for completion in group["completions"]]
    assert sorted(sample for completion in group["completions"] for sample in completion["samples"]) == list(range(8))
    assert advantages == sorted(advantages, reverse=True)
    unscored = [c for c in group["completions"] if c["reward"] is None]
    assert [dict(c["parts"]) for c in unscored] == [{"accuracy": None, "format": 1.0}]
    [cut] = [c["text"] for c in group["completions"] if isinstance(c["text"], dict)]
    assert (len(cut["head"]), cut["cut"], len(cut["tail"])) == (1000, 10500, 500)


# -- any run -----------------------------------------------------------------------------------------


def test_supervised_fine_tuning_only(tmp_path: Path) -> None:
    data = report_data(make_run(tmp_path / "r", iterations=0))
    assert (data["complete"], data["progress"]) == (True, "SFT step 200 of 200")
    assert (data["estimates"], data["held_out"], data["training"]) == ([], None, [])
    assert [part["section"] for part in data["sections"]] == ["Supervised fine-tuning"]
    assert data["findings"] == [
        {"tone": "note", "text": "SFT loss went from 1.986 to 0.231 nats per token (first and last tenth)."}
    ]
    assert Page(render(data)).tags.count("script") == 3


def test_one_iteration(tmp_path: Path) -> None:
    data = report_data(make_run(tmp_path / "r", sft_steps=0, iterations=1, nasty=False))
    assert data["progress"] == "GRPO iteration 1 of 1"
    assert [part["iteration"] for part in data["training"]] == [1]
    assert data["findings"][0]["text"].endswith("the 95% intervals overlap, so this may be chance.")


def test_a_run_that_was_never_evaluated(tmp_path: Path) -> None:
    data = report_data(make_run(tmp_path / "r", held_out=0, iterations=3))
    assert (data["estimates"], data["held_out"]) == ([], None)
    assert data["complete"]
    assert len(data["training"]) == 3


@pytest.mark.parametrize(("status", "ending"), [("running", "running, or killed while it was"), ("stopped", "stopped")])
def test_an_unfinished_run_says_so(tmp_path: Path, status: str, ending: str) -> None:
    data = report_data(make_run(tmp_path / "r", iterations=23, planned=60, status=status))
    assert not data["complete"]
    assert data["progress"] == f"GRPO iteration 23 of 60, {ending}"
    sampled = next(row for row in data["estimates"] if row["name"] == "pass@1")
    assert sampled["after"] is None


def test_the_first_stage_of_two(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", iterations=0)
    with RunLog.open(run) as log:
        log.set_meta("recipe", json.dumps({"grpo": {"iterations": 60}}))
    data = report_data(run)
    assert not data["complete"]
    assert data["progress"] == "SFT step 200 of 200; GRPO has not been run"


def test_a_run_that_has_only_begun(tmp_path: Path) -> None:
    data = report_data(make_run(tmp_path / "r", sft_steps=0, iterations=0, status="running"))
    assert (data["progress"], data["sections"]) == ("nothing trained yet, running, or killed while it was", [])
    assert Page(render(data)).tags.count("script") == 3


def test_a_group_whose_rewards_are_all_equal_is_shown_if_there_is_no_other(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", sft_steps=0, iterations=1, held_out=0, nasty=False)
    with RunLog.open(run) as log:
        log._db.execute("UPDATE completions SET advantage = 0.0")
    [part] = report_data(run)["training"]
    assert (part["teaching"], len(part["shown"]), part["shown"][0]["largest"]) == (0, 2, 0.0)


def test_marks_that_are_no_yes_or_no_are_compared(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", sft_steps=0, iterations=1, held_out=8, nasty=False)
    with RunLog.open(run) as log:
        log._db.execute("""UPDATE completions SET parts = '{"accuracy": 0.5}' WHERE split = 'eval_greedy'""")
        log._db.execute("""UPDATE completions SET parts = '{"accuracy": 0.7}' WHERE iteration = 1 AND prompt_id < 3""")
        log._db.execute("""UPDATE completions SET parts = '{"accuracy": 0.2}' WHERE iteration = 1 AND prompt_id = 7""")
    assert report_data(run)["held_out"]["counts"] == {"rose": 3, "same": 4, "fell": 1}


def test_a_fall_is_called_a_fall(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", sft_steps=0, iterations=1, held_out=0)
    with RunLog.open(run) as log:
        log.evals([EvalRow("grpo", 0, "greedy", "accuracy", 0.6, 0.55, 0.65, 100)])
        log.evals([EvalRow("grpo", 1, "greedy", "accuracy", 0.4, 0.35, 0.45, 100)])
    assert report_data(run)["findings"][0] == {
        "tone": "bad",
        "text": "Held-out accuracy, greedy fell from 0.600 to 0.400: the 95% intervals do not overlap.",
    }


def test_a_long_run_makes_a_small_page(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", sft_steps=450, iterations=450, prompts=1, group_size=20, held_out=0, nasty=False)
    with RunLog.open(run) as log:
        log._db.execute("UPDATE completions SET completion = ? WHERE iteration IN (1, 226, 450)", ("\u202e" * 50_000,))
    path = write_report(run)
    assert path.stat().st_size < 1_500_000
    data = data_of(path.read_text(encoding="utf-8"))
    points = {len(chart["x"]) for part in data["sections"] for chart in part["charts"]}
    assert points == {400}
    group = data["training"][0]["shown"][0]
    assert sum(len(completion["samples"]) for completion in group["completions"]) == 20


def test_of_a_large_group_both_ends_are_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", sft_steps=0, iterations=1, prompts=1, group_size=40, held_out=0, nasty=False)
    with RunLog.open(run) as log:
        log._db.execute("UPDATE completions SET completion = completion || sample, advantage = sample - 20")
    group = report_data(run)["training"][0]["shown"][0]
    assert [c["advantage"] for c in group["completions"]] == [*range(19, 11, -1), *range(-13, -21, -1)]
    assert group["hidden"] == 24


def test_the_report_is_replaced_whole_or_not_at_all(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", sft_steps=1, iterations=0)
    (run / "report.html").mkdir()
    with pytest.raises(RunLogError, match=r"cannot write .*report\.html"):
        write_report(run)
    assert sorted(path.name for path in run.iterdir()) == ["config.toml", "report.html", "run.sqlite"]
    with pytest.raises(RunLogError, match="is not a run directory"):
        write_report(tmp_path / "nowhere")


# -- text and numbers --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("plain\n\ttext", "plain\n\ttext"),
        ("\x1b[2J\x00\x7f\r", "␛[2J␀␡␍"),
        ("a\u202eb\u200b\ufeff\x9b\u2028", "a⟨U+202E⟩b⟨U+200B⟩⟨U+FEFF⟩⟨U+009B⟩⟨U+2028⟩"),
        ("👩‍👧 한글 naïve", "👩‍👧 한글 naïve"),
        ("\ud800", "⟨U+D800⟩"),
    ],
)
def test_what_would_not_show_is_made_visible(text: str, wanted: str) -> None:
    assert visible(text) == wanted


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    assert shown("abcdef", head=4, tail=2) == "abcdef"
    assert shown("abcdefg", head=4, tail=2) == {"head": "abcd", "cut": 1, "tail": "fg"}
    assert len(NASTY) < 1500


def test_thinning_keeps_both_ends_and_even_steps() -> None:
    assert thinned([3, 4, 5], most=3) == [3, 4, 5]
    assert thinned(list(range(101)), most=5) == [0, 25, 50, 75, 100]


def test_ends_are_means_of_tenths() -> None:
    assert ends([1.0]) == (1.0, 1.0)
    assert ends([float("nan"), 1.0, 3.0]) == (1.0, 3.0)
    assert ends([float(i) for i in range(20)]) == (0.5, 18.5)
    assert ends([]) is None
