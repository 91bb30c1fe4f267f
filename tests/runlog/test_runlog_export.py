"""The completions table has TRL's columns and holds any text."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from oncurve.runlog import RunLog, RunLogError, export


def read(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_jsonl_has_the_columns_of_trl(log: RunLog, row) -> None:
    log.metrics("grpo", 1, 4, {"reward": 0.6})
    log.completions(
        [row(), row(sample=1, completion="5", reward=0.0, advantage=-0.5, parts={"accuracy": 0.0}, extras={})]
    )
    log.completions([row(split="eval_greedy")])
    path = export(log.run_dir)
    assert path == log.run_dir / "completions.jsonl"
    assert read(path) == [
        {
            "step": 4,
            "prompt": "2+2=",
            "completion": "4",
            "reward": 1.2,
            "accuracy": 1.0,
            "format": 0.2,
            "guess": "4",
            "advantage": 0.5,
            "kept": False,
            "truncated": False,
        },
        {
            "step": 4,
            "prompt": "2+2=",
            "completion": "5",
            "reward": 0.0,
            "accuracy": 0.0,
            "format": None,
            "guess": None,
            "advantage": -0.5,
            "kept": False,
            "truncated": False,
        },
    ]


def test_a_column_that_is_taken_gets_a_prefix(log: RunLog, row) -> None:
    log.completions([row(parts={"step": 1.0, "kept": 1.0, "accuracy": 0.0}, extras={"accuracy": "yes", "prompt": "p"})])
    [line] = read(export(log.run_dir, out=log.run_dir / "x" / "out.jsonl"))
    assert line == {
        "step": 1,
        "prompt": "2+2=",
        "completion": "4",
        "reward": 1.2,
        "reward/step": 1.0,
        "reward/kept": 1.0,
        "accuracy": 0.0,
        "extra/accuracy": "yes",
        "extra/prompt": "p",
        "advantage": 0.5,
        "kept": False,
        "truncated": False,
    }


def test_it_marks_what_was_trained_on_and_what_was_cut(log: RunLog, row) -> None:
    """Log-probs of the old policy are kept of what was trained on; without any update they are kept of all."""
    log.metrics("grpo", 1, 1, {"loss": 0.1})
    log.metrics("grpo", 2, 1, {"skipped_updates": 1.0})
    trained = {"old_logprobs": (-0.5,), "token_ids": (7,), "sampler_logprobs": (-0.5,)}
    log.completions([row(**trained, truncated=True), row(sample=1, old_logprobs=None), row(iteration=2, **trained)])
    marks = [(line["kept"], line["truncated"]) for line in read(export(log.run_dir))]
    assert marks == [(True, True), (False, False), (False, False)]


def test_one_line_for_each_completion_whatever_it_says(log: RunLog, row) -> None:
    texts = ["a\nb\r\n\u2028c\x85", "\ud800", "\x00", "🎈"]
    log.completions(row(sample=i, completion=text) for i, text in enumerate(texts))
    lines = export(log.run_dir).read_bytes().splitlines()
    assert [json.loads(line)["completion"] for line in lines] == texts


def test_an_empty_run_gives_an_empty_table(log: RunLog) -> None:
    assert export(log.run_dir).read_text() == ""


def test_parquet_gives_every_column_its_type(log: RunLog, row) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    log.completions(
        [
            row(extras={"n": 1, "ok": True, "text": "a\ud800🎈", "mixed": [1, "b"]}),
            row(sample=1, reward=None, parts={"accuracy": None}, extras={"n": 2.5, "mixed": "c", "nothing": None}),
        ]
    )
    path = export(log.run_dir, "parquet")
    assert path.name == "completions.parquet"
    table = parquet.read_table(path)
    assert {field.name: str(field.type) for field in table.schema} == {
        "step": "int64",
        "prompt": "string",
        "completion": "string",
        "reward": "double",
        "accuracy": "double",
        "format": "double",
        "n": "double",
        "ok": "bool",
        "text": "string",
        "mixed": "string",
        "nothing": "string",
        "advantage": "double",
        "kept": "bool",
        "truncated": "bool",
    }
    rows = table.to_pylist()
    assert [row["accuracy"] for row in rows] == [1.0, None]
    assert [row["n"] for row in rows] == [1.0, 2.5]
    assert [row["ok"] for row in rows] == [True, None]
    assert [row["mixed"] for row in rows] == ['[1, "b"]', '"c"']
    assert rows[0]["text"] == "a\ufffd🎈"


def test_parquet_without_pyarrow_says_what_to_install(log: RunLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(RunLogError, match=r"pip install 'oncurve\[parquet\]'"):
        export(log.run_dir, "parquet")


def test_errors_name_the_format_the_run_and_the_place(log: RunLog, tmp_path: Path) -> None:
    with pytest.raises(RunLogError, match="'xlsx': the formats are jsonl and parquet"):
        export(log.run_dir, "xlsx")
    with pytest.raises(RunLogError, match="nowhere is not a run directory"):
        export(tmp_path / "nowhere")
    with pytest.raises(RunLogError, match=r"cannot write .*config\.toml.out"):
        export(log.run_dir, out=log.run_dir / "config.toml" / "out")
    assert sorted(path.name for path in log.run_dir.iterdir() if "sqlite-" not in path.name) == [
        "config.toml",
        "run.sqlite",
    ]
