"""A row that was changed inside a database that is otherwise whole: told with file, table, row and column."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from fake_run import make_run
from faults.conftest import User
from oncurve.cli import main

COLUMNS = {
    "meta": ["value"],
    "metrics": ["stage", "iteration", "step", "name", "value"],
    "completions": [
        *("split", "stage", "iteration", "prompt_id", "sample", "prompt", "completion"),
        *("token_ids", "sampler_logprobs", "old_logprobs", "ref_logprobs"),
        *("reward", "advantage", "parts", "extras", "truncated"),
    ],
    "evals": ["stage", "iteration", "kind", "name", "value", "low", "high", "n"],
}
BAD = [
    "NULL",
    "'x'",
    "x'010203'",
    "CAST(x'ff' AS TEXT)",
    "'[1]'",
    """'{"accuracy": "high", "grpo": 7}'""",
    "9e999",
    "0.5",
]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(
        tmp_path_factory.mktemp("whole") / "demo",
        sft_steps=2,
        iterations=2,
        prompts=2,
        group_size=4,
        held_out=2,
        samples=2,
        nasty=False,
    )


@pytest.fixture
def run_dir(whole: Path, tmp_path: Path) -> Path:
    shutil.copytree(whole, tmp_path / "runs" / "demo")
    return tmp_path / "runs" / "demo"


def change(run_dir: Path, table: str, column: str, value: str, where: str = "1") -> None:
    """One row."""
    with closing(sqlite3.connect(run_dir / "run.sqlite")) as db, db:
        keys = {"meta": "key", "metrics": "stage, iteration, step, name"}.get(table, "rowid")
        db.execute(f"UPDATE {table} SET {column} = {value} WHERE ({keys}) = (SELECT {keys} FROM {table} WHERE {where})")


TRAIN = "split = 'train' AND iteration = 1 AND prompt_id = 1 AND sample = 1"
TRAIN_ROW = "row (split='train', stage='grpo', iteration=1, prompt_id=1, sample=1)"


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        (
            "token_ids",
            "x'010203'",
            "column token_ids is a BLOB of 3 bytes where a BLOB of 4 bytes for each token belongs",
        ),
        (
            "sampler_logprobs",
            "x'00000000'",
            "column sampler_logprobs is a BLOB of 4 bytes where a BLOB of 4 bytes for each",
        ),
        ("old_logprobs", "'text'", "column old_logprobs is 'text' where a BLOB"),
        ("parts", "'{'", "column parts is '{' where a JSON object belongs"),
        ("parts", """'{"accuracy": "high"}'""", "where a JSON object of numbers and null belongs"),
        ("extras", "NULL", "column extras is NULL where a JSON object belongs"),
        ("reward", "'much'", "column reward is 'much' where a number or NULL belongs"),
        ("advantage", "x'00'", "column advantage is a BLOB of 1 bytes where a number or NULL belongs"),
        ("truncated", "NULL", "column truncated is NULL where a whole number belongs"),
        ("prompt", "NULL", "column prompt is NULL where text belongs"),
        ("completion", "CAST(x'61ff' AS TEXT)", "column completion is a BLOB of 2 bytes where text in UTF-8 belongs"),
    ],
)
def test_a_completion_that_is_damaged(user: User, run_dir: Path, column: str, value: str, words: str):
    change(run_dir, "completions", column, value, TRAIN)
    place = f"{run_dir}/run.sqlite: table completions, {TRAIN_ROW}, "
    user.says("export", str(run_dir), "--to", "jsonl").refused(place, words, "put back a copy of that file")
    assert not (run_dir / "completions.jsonl").exists()


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("parts", "'{'", "column parts is '{' where a JSON object belongs"),
        ("parts", """'{"a": """ + "9" * 400 + "}'", "where a JSON object of numbers and null belongs"),
        ("parts", "'" + "[" * 100_000 + "'", "where a JSON object belongs"),
        ("reward", "'much'", "column reward is 'much' where a number or NULL belongs"),
        ("sample", "'first'", "column sample is 'first' where a whole number belongs"),
    ],
    ids=["cut", "huge", "deep", "reward", "sample"],
)
def test_a_report_of_a_completion_that_is_damaged(user: User, run_dir: Path, column: str, value: str, words: str):
    change(run_dir, "completions", column, value, TRAIN)
    user.says("report", str(run_dir)).refused(f"{run_dir}/run.sqlite: table completions, row (split='train', ", words)
    assert not (run_dir / "report.html").exists()


@pytest.mark.parametrize(
    ("table", "column", "value", "where", "words"),
    [
        (
            "metrics",
            "value",
            "'high'",
            "name = 'reward' AND iteration = 2",
            "table metrics, row (stage='grpo', iteration=2, step=2, name='reward'), column value is 'high'",
        ),
        (
            "evals",
            "n",
            "NULL",
            "name = 'accuracy'",
            "table evals, row (stage='grpo', iteration=0, kind='greedy', name='ac",
        ),
        (
            "meta",
            "value",
            "'{'",
            "key = 'recipe'",
            "table meta, row (key='recipe'), column value is '{' where a JSON obj",
        ),
        ("meta", "value", """'{"grpo": 7}'""", "key = 'recipe'", "where a JSON object of objects belongs"),
        (
            "meta",
            "value",
            "x'00'",
            "key = 'status'",
            "table meta, row (key='status'), column value is a BLOB of 1 bytes",
        ),
    ],
)
def test_a_row_of_another_table(user: User, run_dir: Path, table: str, column: str, value: str, where: str, words: str):
    change(run_dir, table, column, value, where)
    user.says("report", str(run_dir)).refused(f"{run_dir}/run.sqlite: ", words)


def test_a_run_with_a_damaged_row_is_listed_with_the_reason(user: User, run_dir: Path):
    shutil.copytree(run_dir, run_dir.with_name("good"))
    change(run_dir, "evals", "value", "'high'", "kind = 'greedy'")
    out = user.says("runs", str(run_dir.parent)).went_well().out
    assert "good  " in out
    assert "unreadable" in out
    assert f"demo: {run_dir}/run.sqlite: table evals, row (stage='grpo', iteration=0, kind='greedy'" in out


def test_a_number_that_was_not_measured_is_no_damage(user: User, run_dir: Path):
    """NULL is a metric that was NaN."""
    with closing(sqlite3.connect(run_dir / "run.sqlite")) as db, db:
        db.execute("UPDATE metrics SET value = NULL")
    user.says("report", str(run_dir)).went_well()
    user.says("runs", str(run_dir.parent)).went_well()


@pytest.mark.parametrize(
    "recipe",
    [
        {"rewards": {"functions": 3, "weights": [[]]}, "grpo": {"iterations": "many"}},
        {"rewards": {"functions": ["a"], "weights": [[1]]}, "sft": {"steps": {}}},
    ],
)
def test_a_recipe_that_says_something_else(user: User, run_dir: Path, recipe: dict[str, Any]):
    """As one of another version may: it is shown as it is."""
    change(run_dir, "meta", "value", f"'{json.dumps(recipe)}'", "key = 'recipe'")
    user.says("report", str(run_dir)).went_well()


@pytest.mark.parametrize(("table", "column"), [(table, column) for table in COLUMNS for column in COLUMNS[table]])
def test_no_damage_is_a_traceback(table: str, column: str, run_dir: Path, capsys: Any):
    """Every column, every kind of wrong value: told, or not needed."""
    record = run_dir / "run.sqlite"
    good = record.read_bytes()
    place = "key = 'recipe'" if table == "meta" else "iteration = 2"
    told = 0
    for value in BAD:
        record.write_bytes(good)
        try:
            change(run_dir, table, column, value, place)
        except sqlite3.IntegrityError:  # NULL in a key
            continue
        for command in (
            ["report", str(run_dir)],
            ["export", str(run_dir), "--to", "jsonl"],
            ["runs", str(run_dir.parent)],
        ):
            code = main(command)
            said = capsys.readouterr().err
            assert code in (0, 2)
            if code == 2:
                told += 1
                assert f"{record}: table {table}, row (" in said
                assert ", column " in said
    assert told or column in ("split", "stage")  # a row of another stage than any that is asked for is never read
