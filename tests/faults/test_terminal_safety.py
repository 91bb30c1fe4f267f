"""What a model writes is text, in terminal, log and report: it closes no tag, moves no cursor and sets no title."""

from __future__ import annotations

import io
import json
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from faults.conftest import User
from oncurve.cli import main
from oncurve.runlog import RunLog
from tiny import tiny_llama

# Of three words one is an attack, so that a dozen tokens hold several.
ATTACKS = [
    "[/b]",
    "[bold red]",
    "[link=http://evil.example]",
    "\x1b]0;owned\x07",
    "\x1b[2J",
    "\x1b[31m",
    "\x1bc",
    "\x9b31m",
    "\u202e",
    "\r",
    "\x00",
    "</script><script>alert(1)</script>",
    "<!--",
    "<img src=x onerror=alert(2)>",
    "${alert(3)}",
    "\u2028",
]
VOCABULARY = ["<unk>", "</s>", "how", "many", *ATTACKS]

ACTS_ON_A_TERMINAL = re.compile("\x1b\\]|\x1b\\[2J|\x1b\\[31m|\x1bc|[\x00\x07\x9b\u202e]")


@pytest.fixture
def hostile(user: User) -> User:
    """A user whose model writes nothing but attacks."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(VOCABULARY)}, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>").save_pretrained(
        user.directory / "model"
    )
    tiny_llama(vocab_size=len(VOCABULARY), eos_token_id=1, bos_token_id=None).save_pretrained(user.directory / "model")
    user.write_rows(*({"prompt": " ".join(["how", "many"] * n), "note": ATTACKS[n]} for n in range(1, 8)))
    return user


def recipe_of(user: User, **sections: Any) -> str:
    data = {"train": str(user.directory / "data.jsonl"), "eval_size": 2}
    model = {"path": str(user.directory / "model")}
    return user.write_recipe(model=model, data=data, **sections)


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


def on_a_terminal(*argv: str) -> tuple[int, str]:
    screen = Tty()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERM", "xterm-256color")
        patch.setattr(sys, "stdout", screen)
        return main(list(argv)), screen.getvalue()


def completions(run_dir: Path) -> str:
    with RunLog.open(run_dir, readonly=True) as log:
        return "".join(row.completion for row in log.iter_completions("train"))


def test_a_run_prints_samples_of_a_hostile_model(hostile: User):
    recipe = recipe_of(hostile, grpo={"iterations": 20, "group_size": 2}, checkpoint={"every": 50})
    hostile.reward("return [0.0] * len(completion_ids)")
    code, screen = on_a_terminal("grpo", recipe)
    assert code == 0
    assert "\x1b[" in screen  # the bar's own
    assert not ACTS_ON_A_TERMINAL.search(screen)
    warning = screen.partition("warning: reward 'varied'")[2]
    assert "[/b]" in warning or "[bold red]" in warning or "[link=http" in warning
    written = completions(hostile.run_dir)
    assert all(attack in written for attack in ATTACKS)


@pytest.mark.parametrize("say", [lambda user, *argv: user.says(*argv).out, lambda user, *argv: on_a_terminal(*argv)[1]])
def test_samples_are_shown_as_text(hostile: User, say: Any):
    shown = say(hostile, "sample", recipe_of(hostile), "--prompt", "how many", "--n", "16", "--temperature", "2")
    assert not ACTS_ON_A_TERMINAL.search(shown)
    for attack in ATTACKS:
        if attack.isprintable():
            assert attack in shown


def test_an_error_that_quotes_a_completion_is_text(hostile: User):
    recipe = recipe_of(hostile)
    hostile.write(
        "reward.py", f"def varied(completions, **_):\n    raise ValueError({''.join(ATTACKS)!r} + completions[0])\n"
    )
    outcome = hostile.says("grpo", recipe)
    outcome.refused("reward 'varied' failed", "[/b]", "</script><script>alert(1)</script>")
    assert not ACTS_ON_A_TERMINAL.search(outcome.err)
    assert "\r" not in outcome.err


class Page(HTMLParser):
    """The elements of a page, and what its scripts hold."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[str] = []
        self.scripts: list[str] = []
        self.handlers: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(tag)
        self.handlers += [name for name, _ in attrs if name.startswith("on")]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script":
            self.scripts[-1] += data


def test_the_report_of_a_hostile_model_is_inert(hostile: User):
    harmless = hostile.write_recipe(run={"name": "harmless"}, name="harmless.toml")
    hostile.says("grpo", harmless).went_well()
    hostile.says("grpo", recipe_of(hostile, eval={"samples": 2, "pass_at": [1]})).went_well()
    pages = [(hostile.run_dir.parent / name / "report.html").read_text("utf-8") for name in ("harmless", "small")]
    harmless_page, page = map(Page, pages)
    assert page.elements == harmless_page.elements
    assert page.handlers == []
    data = json.loads(next(script for script in page.scripts if script.startswith("{")))
    assert "</script><script>alert(1)</script>" in json.dumps(data)
    assert "alert(1)</script>" not in pages[1]
    assert not re.search("[\x00\x07\x1b\x9b\u2028\u202e]", pages[1])


def test_an_export_of_hostile_text_gives_it_back(hostile: User):
    hostile.says("grpo", recipe_of(hostile)).went_well()
    hostile.says("export", str(hostile.run_dir), "--to", "jsonl").went_well()
    exported = (hostile.run_dir / "completions.jsonl").read_bytes()
    assert "".join(json.loads(line)["completion"] for line in exported.splitlines()) == completions(hostile.run_dir)
