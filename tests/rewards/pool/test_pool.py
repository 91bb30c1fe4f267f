"""Items that hang, eat memory or end their process cost themselves alone."""

from __future__ import annotations

import asyncio
import datetime
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from pathlib import Path

import pytest

from oncurve.rewards.pool import Pool, PoolError
from oncurve.rewards.pool.inner import wire

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def pool():
    sys.path.append(str(HERE))
    try:
        with Pool("scorer:score", workers=2, seconds=0.3, memory_mb=400) as made:
            made.start()
            yield made
    finally:
        sys.path.remove(str(HERE))


def statuses(outcomes):
    return [outcome.status for outcome in outcomes]


def test_values_cross(pool):
    value = {
        "text": "a\ud800\x00b",
        "numbers": [1, 2.5, -(10**40), True, None],
        "bytes": b"\x00\xff",
        "set": {1, 2},
        "half": Fraction(1, 2),
        "price": Decimal("0.10"),
        "when": datetime.datetime(2026, 1, 2, 3, 4),
        "day": datetime.date(2026, 1, 2),
        "keys": {1: "one", (2, 3): "two"},
    }
    (outcome,) = pool.map([value])
    assert outcome.status == "ok"
    assert outcome.value == value
    assert pool.map([(1, (2,))])[0].error.startswith("AttributeError")  # a tuple arrives as a list
    with pytest.raises(wire.Foreign, match="a object cannot be sent"):
        pool.map([object()])
    assert pool.map(["say still there"])[0].value == "still there"


@pytest.mark.parametrize(
    ("item", "status"),
    [("spin", "timeout"), ("regex", "timeout"), ("sleep 60", "timeout"), ("grow", "memory"), ("exit", "lost")],
)
def test_one_item_is_lost_and_the_next_is_right(pool, item, status):
    began = time.monotonic()
    (outcome,) = pool.map([item])
    assert outcome.status == status
    assert time.monotonic() - began < 8.0
    assert [outcome.value for outcome in pool.map(["say a", "say b", "say c"])] == ["a", "b", "c"]


def test_many_that_never_end_in_a_pool_of_two(pool):
    items = ["spin", "say a", "regex", "say b", "spin", "say c", "grow", "say d"]
    outcomes = pool.map(items)
    assert statuses(outcomes) == ["timeout", "ok", "timeout", "ok", "timeout", "ok", "memory", "ok"]
    assert [outcome.value for outcome in outcomes[1::2]] == ["a", "b", "c", "d"]
    pids = {outcome.value for outcome in pool.map(["pid"] * 50)}
    assert 1 <= len(pids) <= 2
    assert len(pool.map(["sleep 0.3", "sleep 0.3"])) == 2


def test_limits_count_processor_time_first(pool):
    """A scorer that waits is given longer: a busy machine must not make a right answer wrong."""
    assert pool.map(["sleep 0.6"])[0].status == "ok"  # twice the limit


def test_an_exception_is_told(pool):
    (outcome,) = pool.map(["raise \x1b[31mno"])
    assert (outcome.status, outcome.error) == ("error", "ValueError: \x1b[31mno")


def test_from_threads(pool):
    with ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda n: pool.map([f"say {n}", "spin", f"say {n}x"]), range(6)))
    for number, outcomes in enumerate(found):
        assert [outcome.value for outcome in outcomes] == [str(number), None, f"{number}x"]
        assert outcomes[1].status == "timeout"


def test_from_coroutines(pool):
    async def both():
        return await asyncio.gather(pool.map_async(["say a", "spin"]), pool.map_async(["say b"]))

    first, second = asyncio.run(both())
    assert (first[0].value, first[1].status, second[0].value) == ("a", "timeout", "b")


def test_queue_time_is_told(pool):
    outcomes = pool.map(["sleep 0.2"] * 6)
    assert statuses(outcomes) == ["ok"] * 6
    assert max(outcome.queued for outcome in outcomes) > 0.3  # three rounds in a pool of two
    assert all(0.15 < outcome.seconds < 2.0 for outcome in outcomes)


def test_a_fork_of_the_trainer_has_workers_of_its_own(pool):
    (mine,) = {outcome.value for outcome in pool.map(["pid"])}
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            theirs = pool.map(["pid", "spin", "say a"])
            os.write(write, f"{theirs[0].value} {theirs[1].status} {theirs[2].value}".encode())
            pool.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    pid, *rest = os.read(read, 1000).decode().split()
    assert int(pid) != mine
    assert rest == ["timeout", "a"]
    assert pool.map(["pid"])[0].value == mine


def test_a_host_that_was_killed_is_replaced(pool):
    pool.map(["say a"])
    os.kill(pool._host.pid, signal.SIGKILL)
    # Workers outlive it, until one has to be replaced.
    assert statuses(pool.map(["spin"])) == ["timeout"]
    assert [outcome.value for outcome in pool.map(["say a", "say b", "say c"])] == ["a", "b", "c"]


def children_of(pid):
    found = subprocess.run(["ps", "-o", "pid=,stat=", "--ppid", str(pid)], capture_output=True, text=True, check=False)
    return [line.split() for line in found.stdout.splitlines()]


def test_no_zombies_and_nothing_left_over(pool):
    pool.map(["spin", "exit", "grow", "say a"])
    host = pool._host.pid
    assert not [stat for _, stat in children_of(host) if stat.startswith("Z")]
    workers = [int(pid) for pid, _ in children_of(host)]
    pool.close()
    for pid in [host, *workers]:
        deadline = time.monotonic() + 5.0
        while os.path.exists(f"/proc/{pid}") and time.monotonic() < deadline:
            time.sleep(0.02)
        assert not os.path.exists(f"/proc/{pid}")
    assert pool.map(["say again"])[0].value == "again"


@pytest.mark.skipif(sys.platform != "linux", reason="Landlock and seccomp are Linux's")
def test_workers_are_held_in(pool, tmp_path):
    if not pool.held:
        pytest.skip("this kernel has no Landlock")
    for item in (f"write {tmp_path}/marker", "fork"):
        (outcome,) = pool.map([item])
        assert outcome.status == "error"
        assert "PermissionError" in outcome.error or "BlockingIOError" in outcome.error or "OSError" in outcome.error
    assert not (tmp_path / "marker").exists()


def test_one_that_is_not_held_in_can_write(tmp_path, monkeypatch):
    """Else the test above would prove nothing."""
    monkeypatch.syspath_prepend(str(HERE))
    with Pool("scorer:score", workers=1, hold="no") as pool:
        assert pool.map([f"write {tmp_path}/marker"])[0].status == "ok"
        assert not pool.held
    assert (tmp_path / "marker").exists()


def test_a_fresh_worker_for_each_item_knows_nothing_of_the_last(pool, monkeypatch):
    monkeypatch.syspath_prepend(str(HERE))
    with Pool("scorer:score", workers=1, fresh=True) as fresh:
        assert fresh.map(["say a", "seen"])[1].value == ["seen"]
    with Pool("scorer:score", workers=1) as worn:
        assert worn.map(["say a", "seen"])[1].value == ["say a", "seen"]


def test_workers_start_light(pool):
    assert [outcome.value for outcome in pool.map(["modules torch", "modules oncurve", "modules json"])] == [
        False,
        False,
        True,
    ]


def test_what_cannot_start_says_why(monkeypatch, tmp_path):
    (tmp_path / "broken_scorer.py").write_text("import json\nimport no_such_thing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for target, said in (
        ("broken_scorer:score", r"broken_scorer.py, line 2 \(`import no_such_thing`\): ModuleNotFoundError"),
        ("no_such_module:score", "there is no module 'no_such_module'"),
        ("json:no_such", "json has no 'no_such'"),
    ):
        with pytest.raises(PoolError, match=said):
            Pool(target).map([1])


def test_nothing_to_do(pool):
    assert pool.map([]) == []
