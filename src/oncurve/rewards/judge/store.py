"""What a judge said, and what it cost, kept in one SQLite file that several processes may share."""

from __future__ import annotations

import json
import random
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, TypeVar

from oncurve.runlog.files import on_network
from oncurve.types import OncurveError

T = TypeVar("T")

_APPLICATION = 0x4A554447  # "JUDG": tells this file from other SQLite files
_FORMAT = 1
_PATIENCE = 30.0
_SCHEMA = (
    "CREATE TABLE answers (key TEXT PRIMARY KEY, scores TEXT NOT NULL, said TEXT NOT NULL, made REAL NOT NULL)"
    " WITHOUT ROWID",
    "CREATE TABLE spent (one INTEGER PRIMARY KEY CHECK (one = 1), calls INTEGER NOT NULL, tokens INTEGER NOT NULL,"
    " cost REAL NOT NULL)",
    "INSERT INTO spent VALUES (1, 0, 0, 0.0)",
    f"PRAGMA application_id = {_APPLICATION}",
    f"PRAGMA user_version = {_FORMAT}",
)


class StoreError(OncurveError):
    """A cache that cannot be opened, read or written. Nothing in the file was changed."""


class LimitReached(OncurveError):
    """The next call could go over a limit."""


@dataclass(frozen=True, slots=True)
class Cost:
    """``tokens``: of prompt and answer; ``money`` in the currency of the prices."""

    tokens: int = 0
    money: float = 0.0


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that may be spent under a cache file in all its life; None: no limit."""

    calls: int | None = None
    tokens: int | None = None
    money: float | None = None


class Store:
    """The open file; without a path it is kept in memory and forgotten.

    Raises:
        StoreError: here and in every method, if the file is damaged, of another kind, or cannot be read or written.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._db: sqlite3.Connection | None = None
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            with self._explained():
                self._db = sqlite3.connect(
                    path or ":memory:", timeout=_PATIENCE, isolation_level=None, check_same_thread=False
                )
                _patiently(self._prepare)
        except OSError as error:
            raise StoreError(f"the judge's cache {path} cannot be made: {error.strerror or error}") from error
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._db is not None:
            self._db.close()
            self._db = None

    def get(self, key: str) -> tuple[dict[str, float], str] | None:
        """The scores and the reply that were kept under ``key``, unchecked but for their types."""
        with self._explained():
            row = self._open.execute("SELECT scores, said FROM answers WHERE key = ?", (key,)).fetchone()
        if row is None:
            return None
        try:
            scores = json.loads(row[0])
            if not isinstance(row[1], str) or not isinstance(scores, dict):
                raise ValueError
        except (ValueError, TypeError):
            raise StoreError(self._damaged(f"{str(row[0])!r:.60} is no answer")) from None
        return scores, row[1]

    def put(self, key: str, scores: Mapping[str, float], said: str) -> None:
        said = said.encode("utf-8", "replace").decode("utf-8")
        with self._explained():
            self._open.execute(
                "INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?)", (key, json.dumps(scores), said, time.time())
            )

    def reserve(self, most: Cost, limits: Limits) -> None:
        """Count a call that is about to be made, at the most that it can cost.

        Raises:
            LimitReached: with it more could be spent than the limits allow. It is not counted then.
        """
        with self._explained():
            done = self._open.execute(
                "UPDATE spent SET calls = calls + 1, tokens = tokens + :tokens, cost = cost + :money"
                " WHERE (:most_calls IS NULL OR calls < :most_calls)"
                " AND (:most_tokens IS NULL OR tokens + :tokens <= :most_tokens)"
                " AND (:most_money IS NULL OR cost + :money <= :most_money)",
                {
                    "tokens": most.tokens,
                    "money": most.money,
                    "most_calls": limits.calls,
                    "most_tokens": limits.tokens,
                    "most_money": limits.money,
                },
            ).rowcount
        if not done:
            raise LimitReached(self._limit(most, limits))

    def settle(self, reserved: Cost, actual: Cost) -> None:
        """Put what a call did cost in place of what was reserved for it."""
        with self._explained():
            self._open.execute(
                "UPDATE spent SET tokens = max(0, tokens + ?), cost = max(0.0, cost + ?)",
                (actual.tokens - reserved.tokens, actual.money - reserved.money),
            )

    def spent(self) -> tuple[int, Cost]:
        """Calls, and what they cost, since the file was made."""
        with self._explained():
            row = self._open.execute("SELECT calls, tokens, cost FROM spent").fetchone()
        if row is None:
            raise StoreError(self._damaged("it does not say what was spent"))
        return row[0], Cost(row[1], row[2])

    @property
    def _open(self) -> sqlite3.Connection:
        assert self._db is not None, "used after close"
        return self._db

    def _prepare(self) -> None:
        db = self._open
        tables = self._check()
        if self.path is not None:
            # As in the record of a run: WAL lets several processes read and write; it needs shared memory.
            wanted = "delete" if on_network(self.path) else "wal"
            if db.execute("PRAGMA journal_mode").fetchone()[0] != wanted:
                db.execute(f"PRAGMA journal_mode = {wanted}")
            db.execute("PRAGMA synchronous = NORMAL")
        if tables:
            return
        db.execute("BEGIN IMMEDIATE")
        try:
            if not self._check():  # another process may have been first
                for statement in _SCHEMA:
                    db.execute(statement)
            db.execute("COMMIT")
        except BaseException:
            db.execute("ROLLBACK")
            raise

    def _check(self) -> set[str]:
        """The tables that are there: none, or ours."""
        db = self._open
        tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        application = db.execute("PRAGMA application_id").fetchone()[0]
        version = db.execute("PRAGMA user_version").fetchone()[0]
        if tables and (application != _APPLICATION or not {"answers", "spent"} <= tables):
            raise StoreError(f"{self.path} is an SQLite file, but no judge's cache; name another as `cache`")
        if tables and version != _FORMAT:
            raise StoreError(
                f"the judge's cache {self.path} has format {version}, and this version of Oncurve knows {_FORMAT}; "
                "name another file as `cache`"
            )
        return tables

    @contextmanager
    def _explained(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:
            raise StoreError(f"the judge's cache {self.path} cannot be used: {error}") from error
        except (sqlite3.Error, UnicodeError) as error:
            raise StoreError(self._damaged(str(error))) from error

    def _damaged(self, how: str) -> str:
        return (
            f"the judge's cache {self.path} is damaged ({how}); move it away, or name another file as `cache`. What "
            "was spent is counted from 0 then"
        )

    def _limit(self, most: Cost, limits: Limits) -> str:
        calls, cost = self.spent()
        if limits.calls is not None and calls >= limits.calls:
            what = f"limit_calls = {limits.calls}: {calls} calls were made"
        elif limits.tokens is not None and cost.tokens + most.tokens > limits.tokens:
            what = f"limit_tokens = {limits.tokens}: {cost.tokens} were spent, and one call may take {most.tokens}"
        else:
            what = f"limit_cost = {limits.money}: {cost.money:.6g} were spent, and one call may cost {most.money:.2g}"
        where = f"under {self.path}" if self.path is not None else "by this process"
        return f"the judge's limit is reached ({where}), {what}. What it said so far is kept; raise the limit to go on"


def _patiently(action: Callable[[], T]) -> T:
    """Switching a new file to WAL may find it locked by another process that does the same, and is not made to wait."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            return action()
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
            time.sleep(random.SystemRandom().uniform(0.001, 0.02))


def plain(value: Any) -> str:
    """JSON that is the same for what is the same, for keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))
