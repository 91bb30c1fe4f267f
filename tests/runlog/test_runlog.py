"""The record keeps what it is given, whole iterations at a time."""

from __future__ import annotations

import math
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from oncurve.runlog import EvalRow, RunLog, RunLogError
from oncurve.runlog import schema as schema_module
from oncurve.runlog.files import on_network, replacing
from oncurve.types import OncurveError

STAGES = ["sft", "grpo"]


def test_create_makes_the_directory_its_config_and_an_empty_record(tmp_path: Path) -> None:
    with RunLog.create(tmp_path / "runs" / "a", "[run]\n", "{}", "0.1.0") as log:
        assert (tmp_path / "runs" / "a" / "config.toml").read_text() == "[run]\n"
        assert log.get_meta("recipe") == "{}"
        assert log.get_meta("oncurve") == "0.1.0"
        assert log.get_meta("format_version") == "2"
        assert log.get_meta("status") == "running"
        assert log.get_meta("nothing") is None
        assert log.metric_names("grpo") == []
        assert log.eval_rows() == []
    assert sorted(path.name for path in (tmp_path / "runs" / "a").iterdir()) == ["config.toml", "run.sqlite"]


def test_a_run_directory_is_begun_once(log: RunLog) -> None:
    with pytest.raises(RunLogError, match="already belongs to a run"):
        RunLog.create(log.run_dir, "", "{}", "0.1.0")


def test_the_recipe_can_be_written_again(log: RunLog) -> None:
    log.set_recipe("a = 2\n", '{"a": 2}')
    assert (log.run_dir / "config.toml").read_text() == "a = 2\n"
    assert log.get_meta("recipe") == '{"a": 2}'


def test_a_row_comes_back_as_it_was(log: RunLog, row) -> None:
    with log.iteration():
        log.completions([row(sample=1, truncated=True, reward=None, advantage=None), row()])
    assert log.completion_rows("train", "grpo") == [row(), row(sample=1, truncated=True, reward=None, advantage=None)]


def test_log_probs_are_float32_and_blobs_little_endian(log: RunLog, row) -> None:
    log.completions([row(token_ids=[1, -2], sampler_logprobs=[-1.0, -math.inf])])
    with closing(sqlite3.connect(log.path)) as db:
        [(ids, logprobs)] = db.execute("SELECT token_ids, sampler_logprobs FROM completions")
    assert ids == b"\x01\x00\x00\x00\xfe\xff\xff\xff"
    assert logprobs == b"\x00\x00\x80\xbf\x00\x00\x80\xff"
    assert log.completion_rows("train", "grpo")[0].sampler_logprobs == (-1.0, -math.inf)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "lone \ud800 and \udfff surrogates",
        "NUL \x00 in the middle",
        "\x1b[2J[/b]</script><!--",
        "👩‍👩‍👧 naïve 한글 \u2028\u202e",
        "x" * 1_000_000,
    ],
    ids=["empty", "surrogates", "nul", "markup", "unicode", "1 MB"],
)
def test_any_text_survives(log: RunLog, row, text: str) -> None:
    wanted = row(prompt=text, completion=text, extras={"note": text, text[:50]: 1})
    log.completions([wanted])
    assert log.completion_rows("train", "grpo") == [wanted]
    assert len(log.digest()) == 64


def test_nan_means_unscored_in_a_row_and_stays_nan_in_a_series(log: RunLog, row) -> None:
    nan = math.nan
    log.completions([row(reward=nan, advantage=nan, parts={"accuracy": nan}, extras={"x": [nan, math.inf]})])
    log.metrics("grpo", 1, 1, {"kl": nan, "reward": math.inf})
    log.evals([EvalRow("grpo", 0, "greedy", "accuracy", nan, nan, nan, 0)])
    [kept] = log.completion_rows("train", "grpo")
    assert (kept.reward, kept.advantage, kept.parts) == (None, None, {"accuracy": None})
    assert kept.extras == {"x": [None, "Infinity"]}
    assert log.metric_names("grpo") == ["kl", "reward"]
    [(iteration, step, value)] = log.series("kl", "grpo")
    assert (iteration, step) == (1, 1)
    assert math.isnan(value)
    assert log.series("reward", "grpo") == [(1, 1, math.inf)]
    assert math.isnan(log.eval_rows()[0].value)


def test_an_extra_that_json_cannot_hold_is_kept_as_text(log: RunLog, row) -> None:
    log.completions([row(extras={"path": Path("a"), "by": {3: (1, 2)}})])
    assert log.completion_rows("train", "grpo")[0].extras == {"path": "a", "by": {"3": [1, 2]}}


def test_an_exception_takes_back_the_whole_iteration(log: RunLog, row, write) -> None:
    write(log, 1)
    with pytest.raises(ZeroDivisionError), log.iteration():  # noqa: PT012
        log.metrics("grpo", 2, 4, {"reward": 0.5})
        log.completions([row(iteration=2)])
        raise ZeroDivisionError
    assert log.series("reward", "grpo") == [(1, 2, 0.125)]
    assert log.iterations("train", "grpo") == [1]
    write(log, 2)
    assert log.iterations("train", "grpo") == [1, 2]


def test_a_row_is_never_written_twice(log: RunLog, row) -> None:
    log.completions([row()])
    with pytest.raises(sqlite3.IntegrityError):
        log.completions([row(sample=5), row()])
    assert [kept.sample for kept in log.completion_rows("train", "grpo")] == [0]


def test_kill_9_in_the_middle_of_an_iteration_leaves_the_iterations_before_it(tmp_path: Path) -> None:
    child = """
import sys
from oncurve.runlog import RunLog
log = RunLog.create(sys.argv[1], "", "{}", "0")
for i in range(1, 4):
    with log.iteration():
        log.metrics("grpo", i, i, {"reward": float(i), "kl": 0.0})
        if i == 3:
            print("half way", flush=True)
            sys.stdin.read()
"""
    process = subprocess.Popen(
        [sys.executable, "-c", child, str(tmp_path / "r")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half way\n"
        process.kill()
    assert process.returncode == -signal.SIGKILL
    with RunLog.open(tmp_path / "r") as log:
        assert log.series("reward", "grpo") == [(1, 1, 1.0), (2, 2, 2.0)]


def test_a_full_disk_names_the_file_and_takes_nothing(log: RunLog, row, write) -> None:
    write(log, 1)
    pages = log._db.execute("PRAGMA page_count").fetchone()[0]
    log._db.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(RunLogError, match=r"demo.run\.sqlite: database or disk is full"), log.iteration():  # noqa: PT012
        log.metrics("grpo", 2, 2, {"reward": 1.0})
        log.completions([row(iteration=2, completion="x" * 100_000)])
    log._db.execute("PRAGMA max_page_count = 100000")
    assert log.series("reward", "grpo") == [(1, 2, 0.125)]
    write(log, 2)


def test_a_reader_sees_what_is_committed_while_the_writer_is_at_work(log: RunLog, row, write) -> None:
    write(log, 1)
    with log.iteration():
        log.completions([row(iteration=2)])
        with RunLog.open(log.run_dir, readonly=True) as reader:
            assert reader.iterations("train", "grpo") == [1]
            with pytest.raises(RunLogError, match="readonly"):
                reader.set_meta("status", "finished")
    with RunLog.open(log.run_dir, readonly=True) as reader:
        assert reader.iterations("train", "grpo") == [1, 2]


def test_a_closed_record_is_one_plain_file_and_reading_leaves_no_other(log: RunLog, write) -> None:
    write(log, 1)
    log.close()
    for _ in range(2):
        with RunLog.open(log.run_dir, readonly=True) as reader:
            assert reader.iterations("train", "grpo") == [1]
        assert sorted(path.name for path in log.run_dir.iterdir()) == ["config.toml", "run.sqlite"]


def test_closing_does_not_wait_for_a_reader(log: RunLog, write) -> None:
    write(log, 1)
    with RunLog.open(log.run_dir, readonly=True) as reader:
        rows = reader.iter_completions("train")
        assert next(rows).sample == 0
        log.close()
        assert [row.sample for row in rows] == [1]
    with RunLog.open(log.run_dir) as again:
        write(again, 2)
    assert sorted(path.name for path in log.run_dir.iterdir()) == ["config.toml", "run.sqlite"]


# -- rewind ----------------------------------------------------------------------------------------


def test_rewind_deletes_all_that_is_later_and_nothing_else(log: RunLog, write) -> None:
    for step in (1, 2, 3):
        log.metrics("sft", 0, step, {"loss": 1.0 / step})
    for iteration in (0, 1, 2, 3):
        write(log, iteration)
    log.rewind(STAGES, "grpo", 2, 4)
    assert [i for i, _, _ in log.series("reward", "grpo")] == [0, 1, 2]
    assert log.iterations("train", "grpo") == [0, 1, 2]
    assert [row.iteration for row in log.eval_rows()] == [0, 1, 2]
    assert len(log.series("loss", "sft")) == 3


def test_rewind_into_sft_takes_all_of_grpo(log: RunLog, write) -> None:
    for step in (1, 2, 3):
        log.metrics("sft", 0, step, {"loss": 1.0 / step})
    write(log, 0)
    write(log, 1)
    log.rewind(STAGES, "sft", 0, 2)
    assert [step for _, step, _ in log.series("loss", "sft")] == [1, 2]
    assert log.metric_names("grpo") == []
    assert log.iterations("train", "grpo") == []
    assert not log.has_evals("grpo", 0)


def test_a_resumed_record_equals_an_uninterrupted_one(tmp_path: Path, write) -> None:
    digests = []
    for name, resume_at in (("whole", None), ("resumed", 2)):
        with RunLog.create(tmp_path / name, "", "{}", "0") as log:
            for iteration in (0, 1, 2, 3):
                write(log, iteration)
            if resume_at is not None:
                log.rewind(STAGES, "grpo", resume_at, 2 * resume_at)
                write(log, 3)
            digests.append(log.digest())
            assert log.completion_rows("train", "grpo", iteration=3, limit=1)[0].sample == 0
    assert digests[0] == digests[1]


def test_rewind_refuses_a_stage_it_does_not_know(log: RunLog, write) -> None:
    write(log, 1)
    with pytest.raises(ValueError, match="'ppo'"):
        log.rewind(STAGES, "ppo", 0, 0)
    assert log.iterations("train", "grpo") == [1]


# -- digest ----------------------------------------------------------------------------------------


def test_the_digest_leaves_out_timings_and_nothing_else(log: RunLog, row) -> None:
    log.metrics("grpo", 1, 1, {"reward": 1.0, "time/update": 3.0, "perf/tokens_per_second": 5.0, "step_time": 4.0})
    before = log.digest()
    log.metrics("grpo", 2, 2, {"time/update": 3.5, "step_time": 4.0})
    log.set_meta("status", "finished")
    assert log.digest() == before
    assert log.digest(exclude_prefixes=()) != before
    log.completions([row()])
    after = log.digest()
    assert after != before
    log.rewind(STAGES, "grpo", 0, 0)
    log.metrics("grpo", 1, 1, {"reward": math.nextafter(1.0, 2.0)})
    log.completions([row()])
    assert log.digest() not in (before, after)


# -- readers ---------------------------------------------------------------------------------------


def test_completions_are_picked_by_iteration_prompt_and_number(log: RunLog, row) -> None:
    log.completions(row(iteration=i, prompt_id=p, sample=s) for i in (2, 1) for p in (9, 3) for s in (1, 0))
    log.completions([row(split="eval_greedy", iteration=2)])
    rows = log.completion_rows("train", "grpo", iteration=2)
    assert [(r.prompt_id, r.sample) for r in rows] == [(3, 0), (3, 1), (9, 0), (9, 1)]
    assert [r.iteration for r in log.completion_rows("train", "grpo")] == [1, 1, 1, 1, 2, 2, 2, 2]
    assert len(log.completion_rows("train", "grpo", limit=3)) == 3
    assert {r.prompt_id for r in log.completion_rows("train", "grpo", prompt_ids=[9])} == {9}
    assert log.completion_rows("train", "grpo", prompt_ids=[]) == []
    assert log.completion_rows("train", "sft") == []
    [first, *_] = log.outcomes("train", "grpo", 1)
    assert (first.prompt_id, first.sample, first.reward, first.parts) == (3, 0, 1.2, {"accuracy": 1.0, "format": 0.2})


def test_estimates_keep_the_order_of_the_reward_functions(log: RunLog) -> None:
    for iteration in (1, 0):
        log.evals([EvalRow("grpo", iteration, "greedy", name, 0.5, 0.4, 0.6, 8) for name in ("spelled", "accuracy")])
    assert [(row.iteration, row.name) for row in log.eval_rows()] == [
        (0, "spelled"),
        (0, "accuracy"),
        (1, "spelled"),
        (1, "accuracy"),
    ]
    assert log.has_evals("grpo", 1)
    assert not log.has_evals("grpo", 2)


def test_the_end_of_a_series(log: RunLog, write) -> None:
    for iteration in (1, 2, 3):
        write(log, iteration)
    assert log.series("reward", "grpo", last=2) == [(2, 4, 0.25), (3, 6, 0.375)]
    assert log.series("reward", "grpo", last=9) == log.series("reward", "grpo")
    assert log.series("reward", "sft", last=2) == []


def test_numbers_and_the_recipe_in_meta(log: RunLog) -> None:
    assert log.get_number("sft_steps") is None
    log.set_meta("sft_steps", "12")
    assert log.get_number("sft_steps") == 12
    log.set_recipe("", '{"run": {"name": "a"}, "sft": null}')
    assert log.recipe() == {"run": {"name": "a"}}
    log.set_meta("sft_steps", "twelve")
    with pytest.raises(
        RunLogError, match=r"run\.sqlite: table meta, row \(key='sft_steps'\), column value is 'twelve'"
    ):
        log.get_number("sft_steps")


def test_the_last_position_of_a_stage(log: RunLog, write) -> None:
    assert log.last_position("grpo") is None
    write(log, 1)
    write(log, 3)
    assert log.last_position("grpo") == (3, 6)


# -- bad files -------------------------------------------------------------------------------------


def test_no_record(tmp_path: Path) -> None:
    with pytest.raises(RunLogError, match=r"is not a run directory: it has no run\.sqlite"):
        RunLog.open(tmp_path / "nowhere")
    assert issubclass(RunLogError, OncurveError)


@pytest.mark.parametrize("readonly", [True, False])
def test_a_file_that_is_no_database(tmp_path: Path, readonly: bool) -> None:
    (tmp_path / "run.sqlite").write_bytes(b"not a database at all, but long enough to have a header " * 40)
    with pytest.raises(RunLogError, match=r"run\.sqlite: file is not a database"):
        RunLog.open(tmp_path, readonly)


def test_a_database_of_something_else(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "run.sqlite") as db:
        db.execute("CREATE TABLE meta (key, value)")
    db.close()
    with pytest.raises(RunLogError, match="not the record of an Oncurve run"):
        RunLog.open(tmp_path)


def test_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "run.sqlite").touch()
    with pytest.raises(RunLogError, match="not the record of an Oncurve run"):
        RunLog.open(tmp_path, readonly=True)


def test_a_record_of_a_newer_oncurve(log: RunLog) -> None:
    log.set_meta("format_version", "3")
    with pytest.raises(RunLogError, match=r"run\.sqlite has format 3, this Oncurve reads formats up to 2; upgrade"):
        RunLog.open(log.run_dir)
    log.set_meta("format_version", "one")
    with pytest.raises(RunLogError, match="'one'"):
        RunLog.open(log.run_dir)


def test_a_record_of_an_older_oncurve_is_read_as_it_is_and_brought_up_to_date_when_written(log: RunLog, row) -> None:
    log.completions([row()])
    log.close()
    with closing(sqlite3.connect(log.path)) as db, db:
        for name in ("token_advantages", "token_values"):
            db.execute(f"ALTER TABLE completions DROP COLUMN {name}")
        db.execute("UPDATE meta SET value = '1' WHERE key = 'format_version'")
    before = log.path.read_bytes()
    with RunLog.open(log.run_dir, readonly=True) as old:
        assert old.completion_rows("train", "grpo") == [row()]
    assert log.path.read_bytes() == before
    with RunLog.open(log.run_dir) as new:
        assert new.get_meta("format_version") == "2"
        new.completions([row(sample=1, token_advantages=(0.5,) * len(row().token_ids))])
    with RunLog.open(log.run_dir, readonly=True) as new:
        assert [r.token_advantages is None for r in new.completion_rows("train", "grpo")] == [True, False]


def test_a_torn_record_names_the_file_when_it_is_read(log: RunLog, row) -> None:
    log.completions(row(sample=sample, completion="x" * 5000) for sample in range(40))
    log.close()
    size = log.path.stat().st_size
    with log.path.open("r+b") as file:
        file.seek(size // 4)
        file.write(b"\xff" * (size // 2))
    with (
        RunLog.open(log.run_dir, readonly=True) as damaged,
        pytest.raises(RunLogError, match=r"run\.sqlite: ") as error,
    ):
        damaged.completion_rows("train", "grpo")
    assert len(str(error.value)) < 200 + len(str(log.path))


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(RunLogError, match=r"cannot begin a run in .*file.run"):
        RunLog.create(tmp_path / "file" / "run", "", "{}", "0")


# -- files -----------------------------------------------------------------------------------------


def test_the_write_ahead_log_is_used_where_it_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for network, mode in ((False, "wal"), (True, "delete")):
        monkeypatch.setattr(schema_module, "on_network", lambda path, answer=network: answer)
        with RunLog.create(tmp_path / mode, "", "{}", "0") as log:
            assert log._db.execute("PRAGMA journal_mode").fetchone() == (mode,)
            assert log._db.execute("PRAGMA synchronous").fetchone() == (1,)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads Linux's list of mounts")
def test_network_file_systems_are_known_by_their_mount(tmp_path: Path) -> None:
    mounts = tmp_path / "mountinfo"
    mounts.write_text(
        "22 1 0:1 / / rw shared:1 - ext4 /dev/vda rw\n"
        "23 22 0:2 / /data\\040sets rw - nfs4 host:/x rw\n"
        "24 23 0:3 / /data\\040sets/local rw shared:2 master:3 - xfs /dev/vdb rw\n"
    )
    assert not on_network(Path("/home/me/run"), mounts)
    assert on_network(Path("/data sets/run"), mounts)
    assert not on_network(Path("/data sets/local/run"), mounts)
    assert not on_network(Path("/data sets2"), mounts)
    assert not on_network(Path("/home"), tmp_path / "no such file")


def test_replacing_keeps_the_old_file_when_writing_fails(tmp_path: Path) -> None:
    path = tmp_path / "a" / "file"
    with replacing(path) as temporary:
        temporary.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(path) as temporary:  # noqa: PT012
        temporary.write_text("half")
        raise ZeroDivisionError
    assert path.read_text() == "old"
    assert list(path.parent.iterdir()) == [path]
