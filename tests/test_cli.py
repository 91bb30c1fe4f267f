"""The command line, and the names ``import oncurve`` gives. What is heavy is replaced: these tests load no torch."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import oncurve
from oncurve.cli import main
from oncurve.config import Recipe
from oncurve.runlog import RunLog
from oncurve.types import OncurveError, Stopped

HEAVY = ("torch", "transformers", "pydantic", "numpy", "rich", "yaml")


@dataclass
class Calls:
    """What the stand-ins for the heavy parts were called with."""

    made: list[tuple[Any, ...]] = field(default_factory=list)
    error: BaseException | None = None

    def record(self, *call: Any) -> None:
        self.made.append(call)
        if self.error is not None:
            raise self.error


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    calls = Calls()
    train, demo, api, report = (
        ModuleType(f"oncurve.{name}") for name in ("train", "train.demo", "train.api", "board.report")
    )

    result = SimpleNamespace(run_dir=Path("runs/x"), model_dir=Path("runs/x/models/grpo"))

    def run(recipe: Recipe, *, stages: tuple[str, ...], terminal: Any) -> SimpleNamespace:
        calls.record("run", recipe, stages, terminal)
        return result

    def run_demo(recipe: Recipe, control: bool, terminal: Any) -> SimpleNamespace:
        calls.record("demo", recipe, control)
        return SimpleNamespace(result=result)

    def write_report(run_dir: Path) -> Path:
        calls.record("report", run_dir)
        return run_dir / "report.html"

    train.run = run  # type: ignore[attr-defined]
    train.show_result = lambda result, terminal: calls.record("show", result.run_dir)  # type: ignore[attr-defined]
    train.evaluate_command = lambda *call: calls.record("eval", *call)  # type: ignore[attr-defined]
    demo.run_demo = run_demo  # type: ignore[attr-defined]
    api.sample = lambda source, prompt, flags, **more: calls.record("sample", source, prompt, flags, more)  # type: ignore[attr-defined]
    report.write_report = write_report  # type: ignore[attr-defined]
    for module in (train, demo, api, report):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    return calls


@pytest.fixture
def recipe(tmp_path: Path) -> str:
    path = tmp_path / "r.toml"
    path.write_text('[model]\npath = "m"\n[data]\ntrain = "task:letters"\n[sft]\n[grpo]\n')
    return str(path)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, timeout=60, check=False)


# --- speed ----------------------------------------------------------------------------------------------------------


def test_help_takes_under_three_tenths_of_a_second_of_cpu():
    seconds = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        done = python("-m", "oncurve", "--help")
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert done.returncode == 0
        seconds.append(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime)
    assert min(seconds) < 0.3


@pytest.mark.parametrize("argv", [["--help"], ["--version"], ["grpo", "--help"], ["stf"], ["presets", "dapo"]])
def test_help_imports_nothing_heavy(argv: list[str]):
    code = (
        "import sys; from oncurve.cli import main, _dispatch\n"
        "try: _dispatch(sys.argv[1:])\n"
        "except BaseException: pass\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    assert python("-c", code, *argv).stdout.endswith("[]\n")


def test_import_oncurve_imports_nothing_heavy():
    code = f"import sys, oncurve; dir(oncurve); print([name for name in {HEAVY} if name in sys.modules])"
    assert python("-c", code).stdout == "[]\n"


def test_dry_run_imports_no_torch(recipe: str):
    code = (
        "import sys; from oncurve.cli import main; code = main(sys.argv[1:])\n"
        "print(code, 'torch' in sys.modules, 'transformers' in sys.modules, file=sys.stderr)"
    )
    assert python("-c", code, "train", recipe, "--dry-run").stderr == "0 False False\n"


# --- commands -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "stages"), [("sft", ("sft",)), ("grpo", ("sft", "grpo")), ("train", ("sft", "grpo"))]
)
def test_training_commands_run_their_stages(calls: Calls, recipe: str, command: str, stages: tuple[str, ...]):
    assert main([command, recipe, "--grpo.iterations", "7", "--run.name=x", "--quiet"]) == 0
    [(name, got, got_stages, _), show, report] = calls.made
    assert show == ("show", Path("runs/x"))
    assert report == ("report", Path("runs/x"))
    assert (name, got_stages) == ("run", stages)
    assert (got.grpo.iterations, got.run.name) == (7, "x")


def test_flags_may_stand_before_the_recipe_and_look_like_numbers(calls: Calls, recipe: str):
    assert main(["sft", "--sft.learning-rate", "1e-3", "--model.trust-remote-code", "--data.suffix", "-1", recipe]) == 0
    (_, got, _, _) = calls.made[0]
    assert (got.sft.learning_rate, got.model.trust_remote_code, got.data.suffix) == (1e-3, True, "-1")


@pytest.mark.parametrize("command", ["sft", "grpo"])
def test_a_stage_the_recipe_lacks_is_an_error(calls: Calls, recipe: str, command: str, capsys: Any):
    assert main([command, recipe, f"--{command}", "none"]) == 2
    assert capsys.readouterr().err == f"{recipe} has no [{command}] section, which `oncurve {command}` runs\n"
    assert calls.made == []


def test_train_needs_a_stage(calls: Calls, recipe: str, capsys: Any):
    assert main(["train", recipe, "--sft", "none", "--grpo", "none"]) == 2
    assert "needs an [sft] or a [grpo] section" in capsys.readouterr().err


def test_dry_run_prints_a_recipe_and_the_arithmetic(calls: Calls, recipe: str, capsys: Any):
    assert main(["grpo", recipe, "--dry-run", "--grpo.group-size", "4"]) == 0
    out = capsys.readouterr().out
    assert tomllib.loads(out)["grpo"]["group_size"] == 4
    assert "# grpo, an iteration   16 prompts x 4 in a group = 64 completions\n" in out
    assert calls.made == []
    assert main(["sft", recipe, "--dry-run"]) == 0
    assert "iteration   " not in capsys.readouterr().out


def test_a_quiet_dry_run_prints_nothing_but_errors(calls: Calls, recipe: str, capsys: Any):
    assert main(["train", recipe, "--dry-run", "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["train", recipe, "--dry-run", "--quiet", "--data.train", "no.jsonl"]) == 2
    assert "there is no file no.jsonl" in capsys.readouterr().err


def test_demo_runs_a_shipped_recipe(calls: Calls):
    assert main(["demo", "--grpo.iterations", "3"]) == 0
    assert main(["demo", "--task", "chain", "--control"]) == 0
    (_, letters, control), _, (_, chain, also), _ = calls.made
    assert (letters.data.train, letters.grpo.iterations, control) == ("task:letters", 3, False)
    assert (chain.data.train, also) == ("task:chain", True)


def test_demo_dry_run(calls: Calls, capsys: Any):
    assert main(["demo", "--dry-run"]) == 0
    assert tomllib.loads(capsys.readouterr().out)["data"]["train"] == "task:letters"
    assert calls.made == []


def test_eval_passes_the_model_on(calls: Calls, recipe: str):
    assert main(["eval", recipe]) == 0
    assert main(["eval", recipe, "--model", "somewhere", "--eval.samples", "0", "--eval.pass-at", "[]"]) == 0
    assert [call[2] for call in calls.made] == [None, "somewhere"]
    assert calls.made[1][1].eval.samples == 0


def test_eval_takes_a_run_and_a_model(calls: Calls, recipe: str, tmp_path: Path):
    model = tmp_path / "run" / "models" / "grpo"
    model.mkdir(parents=True)
    (model / "config.json").touch()
    (tmp_path / "run" / "config.toml").write_text(Path(recipe).read_text())
    for source in (tmp_path / "run", model):
        assert main(["eval", str(source)]) == 0
    assert main(["eval", "owner/model", "--data.train", "task:letters"]) == 0
    assert main(["eval", str(tmp_path / "run"), "--model", "other"]) == 0
    assert [(call[1].model.path, call[2]) for call in calls.made] == [
        ("m", str(model)),
        ("m", str(model)),
        ("owner/model", None),
        ("m", "other"),
    ]


def test_sample_passes_everything_on(calls: Calls):
    assert main(["sample", "dir", "--prompt", "-3 + 4", "--n", "2", "--temperature", "0"]) == 0
    assert main(["sample", "r.toml", "--prompt=--x", "--sampling.max-new-tokens", "3"]) == 0
    assert calls.made == [
        ("sample", "dir", "-3 + 4", [], {"n": 2, "temperature": 0.0}),
        ("sample", "r.toml", "--x", ["--sampling.max-new-tokens", "3"], {"n": 4, "temperature": 1.0}),
    ]


def test_report_prints_where_it_is(calls: Calls, capsys: Any):
    assert main(["report", "runs/x"]) == 0
    assert capsys.readouterr().out == "runs/x/report.html\n"


def test_export_writes_beside_the_run_by_default(tmp_path: Path, capsys: Any):
    RunLog.create(tmp_path / "a", "", json.dumps({}), "0").close()
    assert main(["export", str(tmp_path / "a"), "--to", "jsonl"]) == 0
    assert capsys.readouterr().out == f"{tmp_path}/a/completions.jsonl\n"
    assert main(["export", str(tmp_path / "a"), "--to", "jsonl", "--out", str(tmp_path / "o.jsonl")]) == 0
    assert (tmp_path / "o.jsonl").exists()


def test_runs_lists_what_there_is(tmp_path: Path, capsys: Any):
    RunLog.create(tmp_path / "first", "", json.dumps({}), "0").close()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.sqlite").write_text("not a database")
    assert main(["runs", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1].split() == ["run", "begun", "status", "stage", "iteration", "step", "reward", "held-out"]
    assert "first" in out
    assert "unreadable" in out
    assert main(["runs", str(tmp_path / "none")]) == 0
    assert capsys.readouterr().out == f"no runs in {tmp_path / 'none'}\n"


def test_presets_lists_twelve_and_shows_one(capsys: Any):
    assert main(["presets"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 100
    assert len([line for line in lines if not line.startswith(" ")]) == 12
    gspo = next(at for at, line in enumerate(lines) if line.startswith("gspo "))
    assert lines[gspo + 1].strip() == "ratio sequence, clip_low 0.0003, clip_high 0.0004, kl_coef 0"
    assert main(["presets", "dapo"]) == 0
    shown = capsys.readouterr().out
    assert "  clip_high = 0.28\n      ratio <= 1 + 0.28\n      in the paper: section 4.1; eq. 10\n" in shown
    assert "\nPublished settings, for information\n  learning rate: 1e-6, constant" in shown
    assert "\nDeviations\n  - " in shown


def test_python_m_oncurve():
    assert python("-m", "oncurve", "--version").stdout == f"oncurve {oncurve.__version__}\n"


# --- errors ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["stf"], "oncurve has no command 'stf'; did you mean sft?"),
        (["qqqq"], "oncurve has no command 'qqqq'; there are: sft, grpo, train, "),
        (["--versoin"], "oncurve: unrecognized arguments: --versoin"),
        (["sft"], "oncurve sft: the following arguments are required: RECIPE"),
        (["sft", "a.toml", "b.toml"], "oncurve sft: unrecognized arguments: b.toml"),
        (["sft", "no.toml"], "no.toml: no such file"),
        (["sft", "x.toml", "--dryrun"], "oncurve sft: no such option: --dryrun; did you mean --dry-run?"),
        (["presets", "dap"], "no preset 'dap'; did you mean dapo?"),
        (
            ["presets", "x"],
            "no preset 'x'; there are: deepseekmath, deepseekmath-process, r1-zero, r1, dr-grpo, dapo, ",
        ),
        (["runs", "--of", "x"], "oncurve runs: no such option: --of; it has -h, --help"),
        (["export", "x", "--to", "csv"], "oncurve export: argument --to: invalid choice: 'csv'"),
        (["export", "/nowhere", "--to", "jsonl"], "/nowhere is not a run directory"),
        (["report", "x" * 300], "x" * 300 + "/run.sqlite: File name too long"),
        (["runs", "x" * 300], "x" * 300 + ": File name too long"),
        (
            ["demo", "--grpo.grup-size", "3"],
            "command line: --grpo.grup_size: no such option; did you mean --grpo.group_size?",
        ),
        (["demo", "--group-size", "3"], "command line: --group_size: no such option; did you mean --grpo.group_size?"),
        (["sample", "m", "--prompt", "x", "--n", "few"], "oncurve sample: argument --n: invalid int value: 'few'"),
    ],
)
def test_user_errors_are_told_alone_on_stderr_and_exit_2(argv: list[str], message: str, capsys: Any):
    assert main(argv) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(message)
    assert "Traceback" not in err


def test_an_error_is_shown_as_plain_text(calls: Calls, recipe: str, capsys: Any):
    calls.error = OncurveError("reward f returned '[/b]\x1b[2J'")
    assert main(["train", recipe]) == 2
    assert capsys.readouterr().err == "reward f returned '[/b]'\n"


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (Stopped(signal.SIGINT, "stopped; the same command goes on"), 130, "stopped; the same command goes on\n"),
        (Stopped(signal.SIGTERM, "stopped"), 143, "stopped\n"),
        (KeyboardInterrupt(), 130, "interrupted\n"),
    ],
)
def test_signals_have_their_exit_codes(
    calls: Calls, recipe: str, capsys: Any, error: BaseException, code: int, text: str
):
    calls.error = error
    assert main(["train", recipe]) == code
    assert capsys.readouterr().err == text


def test_a_bug_keeps_its_traceback(calls: Calls, recipe: str):
    calls.error = ZeroDivisionError()
    with pytest.raises(ZeroDivisionError):
        main(["train", recipe])


def test_a_reader_that_leaves_is_no_traceback():
    reader = subprocess.Popen(
        [sys.executable, "-m", "oncurve", "demo", "--dry-run"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert reader.stdout is not None
    assert reader.stderr is not None
    reader.stdout.close()
    assert reader.stderr.read() == ""
    assert reader.wait(timeout=60) == 141
    reader.stderr.close()


# --- import oncurve -------------------------------------------------------------------------------------------------


def test_the_public_names(recipe: str):
    assert oncurve.Recipe is Recipe
    assert oncurve.load_recipe(recipe).grpo is not None
    assert set(oncurve.__all__) <= set(dir(oncurve))
    with pytest.raises(AttributeError, match="no attribute 'trian'; it has Recipe"):
        getattr(oncurve, "trian")  # noqa: B009


def test_oncurve_train_is_a_package_and_a_function():
    code = (
        "from oncurve.train import run\n"
        "import oncurve, oncurve.train.sft as sft\n"
        "try: oncurve.train('no.toml', ['--run.seed', '1'])\n"
        "except oncurve.recipe.RecipeError as error: print(error)\n"
        "print(oncurve.train.run is run, sft.__name__, callable(oncurve.sample), callable(oncurve.evaluate))"
    )
    done = python("-c", code)  # a process of its own: what is imported first must not matter, nor stay in this one
    assert done.stdout == "no.toml: no such file\nTrue oncurve.train.sft True True\n", done.stderr
