from __future__ import annotations

import sqlite3
import subprocess
import sys

import pytest

from oncurve.rewards.judge.store import Cost, LimitReached, Limits, Store, StoreError


def test_what_is_put_is_got(tmp_path):
    path = tmp_path / "c.sqlite"
    with Store(path) as store:
        assert store.get("a") is None
        store.put("a", {"x": 1.5}, 'said "\ud800"\x00ü')
        assert store.spent() == (0, Cost(0, 0.0))
    with Store(path) as store:
        assert store.get("a") == ({"x": 1.5}, 'said "?"\x00ü')


def test_reserved_and_settled():
    store = Store(None)
    limits = Limits(calls=3, tokens=100, money=1.0)
    store.reserve(Cost(60, 0.5), limits)
    with pytest.raises(LimitReached, match="limit_tokens = 100: 60 were spent, and one call may take 60"):
        store.reserve(Cost(60, 0.1), limits)
    with pytest.raises(LimitReached, match=r"limit_cost = 1\.0: 0\.5 were spent, and one call may cost 0\.6"):
        store.reserve(Cost(10, 0.6), limits)
    assert store.spent() == (1, Cost(60, 0.5))
    store.settle(Cost(60, 0.5), Cost(5, 0.25))
    assert store.spent() == (1, Cost(5, 0.25))
    store.reserve(Cost(95, 0.75), limits)
    store.reserve(Cost(0, 0.0), limits)
    with pytest.raises(LimitReached, match="limit_calls = 3: 3 calls were made"):
        store.reserve(Cost(0, 0.0), limits)
    store.settle(Cost(10**6, 10.0), Cost(0, 0.0))
    assert store.spent() == (3, Cost(0, 0.0))


PROCESS = """
import sys
from pathlib import Path
from oncurve.rewards.judge.store import Cost, LimitReached, Limits, Store

made = 0
for number in range(40):
    with Store(Path(sys.argv[1])) as store:
        try:
            store.reserve(Cost(1, 0.5), Limits(calls=100))
        except LimitReached:
            continue
        made += 1
        store.put(f"{sys.argv[2]} {number}", {"x": number}, "")
print(made)
"""


def test_several_processes_share_it(tmp_path):
    """Four processes open it while it does not yet exist; of their 160 calls 100 are allowed."""
    path = tmp_path / "c.sqlite"
    processes = [
        subprocess.Popen([sys.executable, "-c", PROCESS, str(path), str(n)], stdout=subprocess.PIPE, text=True)
        for n in range(4)
    ]
    made = [int(process.communicate(timeout=120)[0]) for process in processes]
    assert sum(made) == 100
    with Store(path) as store:
        assert store.spent() == (100, Cost(100, 50.0))
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT count(*) FROM answers").fetchone() == (100,)
    db.close()


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"not a database, but some notes\n" * 100, "is damaged"),
        (b"SQLite format 3\x00" + b"\xff" * 4000, "is damaged"),
    ],
)
def test_a_damaged_file_is_left_as_it_is(tmp_path, content, told):
    path = tmp_path / "c.sqlite"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=told):
        Store(path)
    assert path.read_bytes() == content


def test_damage_in_the_middle(tmp_path):
    path = tmp_path / "c.sqlite"
    with Store(path) as store:
        for number in range(500):
            store.put(str(number), {"x": number}, "y" * 100)
    content = bytearray(path.read_bytes())
    content[8192:] = b"\x55" * (len(content) - 8192)
    path.write_bytes(content)
    with Store(path) as store, pytest.raises(StoreError, match="is damaged"):
        _ = [store.get(str(number)) for number in range(500)]
    assert path.read_bytes() == bytes(content)


@pytest.mark.parametrize("scores", ["[1]", "{", "x", "", "1e999"])
def test_an_answer_that_is_none(tmp_path, scores):
    path = tmp_path / "c.sqlite"
    with Store(path) as store:
        store.put("a", {"x": 1}, "")
    with sqlite3.connect(path) as db:
        db.execute("UPDATE answers SET scores = ?", (scores,))
    db.close()
    with Store(path) as store, pytest.raises(StoreError, match="is damaged"):
        store.get("a")


def test_another_kind_of_file(tmp_path):
    path = tmp_path / "run.sqlite"
    with sqlite3.connect(path) as db:
        db.execute("CREATE TABLE metrics (x)")
    db.close()
    with pytest.raises(StoreError, match="is an SQLite file, but no judge's cache"):
        Store(path)
    with sqlite3.connect(path) as db:
        assert db.execute("SELECT name FROM sqlite_master").fetchall() == [("metrics",)]
    db.close()


def test_a_later_format(tmp_path):
    path = tmp_path / "c.sqlite"
    Store(path).close()
    with sqlite3.connect(path) as db:
        db.execute("PRAGMA user_version = 9")
    db.close()
    with pytest.raises(StoreError, match="has format 9"):
        Store(path)


def test_where_no_file_can_be(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be made"):
        Store(tmp_path / "file" / "c.sqlite")
    with pytest.raises(StoreError, match="cannot be used"):
        Store(tmp_path)
