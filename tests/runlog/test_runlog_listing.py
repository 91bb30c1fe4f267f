"""``list_runs`` says how far each run is and survives any directory."""

from __future__ import annotations

from pathlib import Path

from oncurve.runlog import EvalRow, RunLog, list_runs


def test_a_run_at_a_glance(log: RunLog, write) -> None:
    log.metrics("sft", 0, 20, {"loss": 0.5})
    [info] = list_runs(log.run_dir.parent)
    assert (info.name, info.status, info.stage, info.iteration, info.step) == ("demo", "running", "sft", 0, 20)
    assert (info.reward, info.accuracy, info.problem) == (None, None, None)
    write(log, 1)
    write(log, 2)
    log.set_meta("status", "finished")
    [info] = list_runs(log.run_dir.parent)
    assert (info.status, info.stage, info.iteration, info.step) == ("finished", "grpo", 2, 4)
    assert (info.reward, info.accuracy) == (0.25, 0.5)
    assert info.path == log.run_dir
    assert info.created == log.get_meta("created")


def test_without_accuracy_the_first_reward_function_is_shown(log: RunLog) -> None:
    for name, value in (("spelled", 0.75), ("chain_right", 0.5)):
        log.evals([EvalRow("grpo", 0, "greedy", name, value, 0.0, 1.0, 4)])
    assert list_runs(log.run_dir.parent)[0].accuracy == 0.75


def test_broken_directories_are_listed_with_the_reason(log: RunLog, tmp_path: Path) -> None:
    (tmp_path / "no-record").mkdir()
    (tmp_path / "no-record" / "config.toml").touch()
    (tmp_path / "torn").mkdir()
    (tmp_path / "torn" / "run.sqlite").write_bytes(b"x" * 4096)
    (tmp_path / "not a run").mkdir()
    (tmp_path / "file").touch()
    listed = {info.name: info for info in list_runs(tmp_path)}
    assert list(listed) == ["demo", "no-record", "torn"]
    assert listed["no-record"].status == listed["torn"].status == "unreadable"
    assert "has no run.sqlite" in str(listed["no-record"].problem)
    assert "not a database" in str(listed["torn"].problem)
    assert list_runs(tmp_path / "nowhere") == []
