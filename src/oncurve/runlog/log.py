"""``RunLog``: write a run's record one iteration at a time, take it back to a checkpoint, read it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self, TypeVar

from oncurve.runlog.columns import Stored, number
from oncurve.runlog.digest import TIMINGS, digest
from oncurve.runlog.files import replacing
from oncurve.runlog.rows import (
    COMPLETION_COLUMNS,
    EVAL_COLUMNS,
    METRIC_COLUMNS,
    OUTCOME_COLUMNS,
    CompletionRow,
    EvalRow,
    Outcome,
    completion_from_sql,
    completion_to_sql,
    eval_from_sql,
    eval_to_sql,
    metric_from_sql,
    outcome_from_sql,
)
from oncurve.runlog.schema import DATABASE, RunLogError, connect, create_database, explained

T = TypeVar("T")


class RunLog:
    """The record of one run. One process writes; any number may read meanwhile. Use it as a context manager.

    Whatever the disk does to it is raised as RunLogError, naming the file; of a damaged row, also table, row and
    column.
    """

    def __init__(self, run_dir: Path, db: sqlite3.Connection, readonly: bool) -> None:
        self.run_dir = run_dir
        self.path = run_dir / DATABASE
        self._db = db
        self._writes = not readonly

    @classmethod
    def create(cls, run_dir: Path | str, recipe_toml: str, recipe_json: str, version: str) -> Self:
        """Begin the record of a new run: its directory, ``config.toml`` and an empty ``run.sqlite``.

        Raises RunLogError if the directory holds a record already or cannot be written.
        """
        run_dir = Path(run_dir)
        path = run_dir / DATABASE
        if path.exists():
            raise RunLogError(f"{path} exists: {run_dir} already belongs to a run")
        created = datetime.now(UTC).isoformat(timespec="seconds")
        meta = {"created": created, "oncurve": version, "recipe": recipe_json, "status": "running"}
        try:
            _write_config(run_dir, recipe_toml)
            create_database(path, meta)
        except (OSError, sqlite3.Error) as error:
            raise RunLogError(f"cannot begin a run in {run_dir}: {error}") from error
        return cls.open(run_dir)

    @classmethod
    def open(cls, run_dir: Path | str, readonly: bool = False) -> Self:
        """Open the record of a run that was begun earlier.

        Raises RunLogError: there is none, it is damaged, not Oncurve's, or a newer Oncurve wrote it.
        """
        run_dir = Path(run_dir)
        return cls(run_dir, connect(run_dir / DATABASE, readonly), readonly)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave one plain file, without a write-ahead log beside it: it can be copied, and read where nothing can be
        written."""
        if self._writes:
            self._writes = False
            self._db.execute("PRAGMA busy_timeout = 0")
            # Somebody is reading: then the log stays, and the next one to write and close clears it away.
            with suppress(sqlite3.OperationalError):
                self._db.execute("PRAGMA journal_mode = DELETE")
        self._db.close()

    # -- writing ------------------------------------------------------------------------------------------------------

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """One transaction: all that is written in the block is kept, or (an exception, a kill) none of it."""
        with explained(self.path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                # A full disk may have made sqlite roll back by itself.
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise

    def metrics(self, stage: str, iteration: int, step: int, values: Mapping[str, float]) -> None:
        """NaN is kept as NULL and read back as NaN: measured, and not a number."""
        self._insert(
            "INSERT INTO metrics (stage, iteration, step, name, value) VALUES (?, ?, ?, ?, ?)",
            ((stage, iteration, step, name, number(value)) for name, value in values.items()),
        )

    def completions(self, rows: Iterable[CompletionRow]) -> None:
        places = ", ".join("?" * len(COMPLETION_COLUMNS.split(",")))
        self._insert(
            f"INSERT INTO completions ({COMPLETION_COLUMNS}) VALUES ({places})",
            (completion_to_sql(row) for row in rows),
        )

    def evals(self, rows: Iterable[EvalRow]) -> None:
        self._insert(
            f"INSERT INTO evals ({EVAL_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", (eval_to_sql(row) for row in rows)
        )

    def set_meta(self, key: str, value: str) -> None:
        with explained(self.path):
            self._db.execute(
                "INSERT INTO meta VALUES (?, ?) ON CONFLICT DO UPDATE SET value = excluded.value", (key, value)
            )

    def set_recipe(self, recipe_toml: str, recipe_json: str) -> None:
        """Write down the recipe that the run goes on with."""
        try:
            _write_config(self.run_dir, recipe_toml)
        except OSError as error:
            raise RunLogError(f"{self.run_dir / 'config.toml'}: {error}") from error
        self.set_meta("recipe", recipe_json)

    def rewind(self, stage_order: Sequence[str], stage: str, iteration: int, step: int) -> None:
        """Delete everything after a point, so that the run can go on from a checkpoint made there.

        What the run then writes again is neither doubled nor missing. ``stage_order`` lists the stages in the order
        they run. Completions and evaluations have no step: those of ``iteration`` itself are kept, as a checkpoint is
        made when its iteration is done.
        """
        if stage not in stage_order:
            raise ValueError(f"stage {stage!r} is not one of {list(stage_order)}")
        with self.iteration():
            for later in stage_order[stage_order.index(stage) + 1 :]:
                for table in ("metrics", "completions", "evals"):
                    self._db.execute(f"DELETE FROM {table} WHERE stage = ?", (later,))
            self._db.execute(
                "DELETE FROM metrics WHERE stage = ? AND (iteration, step) > (?, ?)", (stage, iteration, step)
            )
            for table in ("completions", "evals"):
                self._db.execute(f"DELETE FROM {table} WHERE stage = ? AND iteration > ?", (stage, iteration))

    def drop_evaluation(self, stage: str, iteration: int, kind: str) -> None:
        """Delete the estimates of one ``kind`` after an iteration, and the completions they were made from."""
        with self.iteration():
            for table, column, value in (("evals", "kind", kind), ("completions", "split", f"eval_{kind}")):
                where = f"stage = ? AND iteration = ? AND {column} = ?"
                self._db.execute(f"DELETE FROM {table} WHERE {where}", (stage, iteration, value))

    def _insert(self, sql: str, rows: Iterable[tuple[Any, ...]]) -> None:
        if self._db.in_transaction:
            self._db.executemany(sql, rows)
        else:
            with self.iteration():
                self._db.executemany(sql, rows)

    # -- reading ------------------------------------------------------------------------------------------------------

    def get_meta(self, key: str) -> str | None:
        return self._meta(key, lambda row: row.name("value"))

    def get_number(self, key: str) -> int | None:
        """A whole number that ``set_meta`` was given as text."""
        return self._meta(key, lambda row: row.digits("value"))

    def recipe(self) -> dict[str, dict[str, Any]]:
        """The recipe that ``create`` or ``set_recipe`` was given as JSON: section -> option -> value; a stage that was
        left out is not in it."""
        return self._meta("recipe", lambda row: row.sections("value")) or {}

    def _meta(self, key: str, convert: Callable[[Stored], T]) -> T | None:
        sql = "SELECT key, value FROM meta WHERE key = ? AND value IS NOT NULL"
        return next(self._select(lambda row: convert(Stored("meta", "key, value", row)), sql, key), None)

    def metric_names(self, stage: str) -> list[str]:
        return list(
            self._select(
                lambda row: Stored("metrics", "stage, name", row).name("name"),
                "SELECT DISTINCT stage, name FROM metrics WHERE stage = ? ORDER BY name",
                stage,
            )
        )

    def series(self, name: str, stage: str, last: int | None = None) -> list[tuple[int, int, float]]:
        """``(iteration, step, value)`` of one metric, in order; with ``last`` only so many at its end, and no more are
        read."""
        # Left to itself sqlite takes the primary key, and reads every metric of the stage.
        rows = self._select(
            metric_from_sql,
            f"SELECT {METRIC_COLUMNS} FROM metrics INDEXED BY metrics_by_name WHERE name = ? AND stage = ? "
            f"ORDER BY iteration DESC, step DESC LIMIT {-1 if last is None else last}",
            name,
            stage,
        )
        return list(rows)[::-1]

    def last_position(self, stage: str) -> tuple[int, int] | None:
        """``(iteration, step)`` of the last metrics of a stage."""
        sql = f"SELECT {METRIC_COLUMNS} FROM metrics WHERE stage = ? ORDER BY iteration DESC, step DESC LIMIT 1"
        return next((row[:2] for row in self._select(metric_from_sql, sql, stage)), None)

    def completion_rows(
        self,
        split: str,
        stage: str,
        iteration: int | None = None,
        limit: int | None = None,
        prompt_ids: Sequence[int] | None = None,
    ) -> list[CompletionRow]:
        """In the order of iteration, prompt and sample; at most ``limit`` rows."""
        return list(self.iter_completions(split, stage, iteration, limit, prompt_ids))

    def iter_completions(
        self,
        split: str,
        stage: str | None = None,
        iteration: int | None = None,
        limit: int | None = None,
        prompt_ids: Sequence[int] | None = None,
    ) -> Iterator[CompletionRow]:
        """As ``completion_rows``, one at a time; of all stages without ``stage``."""
        where, values = "split = ?", [split]
        for column, value in (("stage", stage), ("iteration", iteration)):
            if value is not None:
                where, values = f"{where} AND {column} = ?", [*values, value]
        if prompt_ids is not None:
            where, values = f"{where} AND prompt_id IN ({', '.join('?' * len(prompt_ids))})", [*values, *prompt_ids]
        return self._select(
            completion_from_sql,
            f"SELECT {COMPLETION_COLUMNS} FROM completions WHERE {where} "
            f"ORDER BY stage, iteration, prompt_id, sample LIMIT {-1 if limit is None else limit}",
            *values,
        )

    def iterations(self, split: str, stage: str) -> list[int]:
        """The iterations that completions were kept of."""
        columns = "split, stage, iteration"
        rows = self._select(
            lambda row: Stored("completions", columns, row).integer("iteration"),
            f"SELECT DISTINCT {columns} FROM completions WHERE split = ? AND stage = ? ORDER BY iteration",
            split,
            stage,
        )
        return list(rows)

    def outcomes(self, split: str, stage: str, iteration: int) -> list[Outcome]:
        """Rewards and advantages of an iteration, without texts, by prompt and sample."""
        rows = self._select(
            outcome_from_sql,
            f"SELECT {OUTCOME_COLUMNS} FROM completions WHERE split = ? AND stage = ? AND iteration = ? "
            "ORDER BY prompt_id, sample",
            split,
            stage,
            iteration,
        )
        return list(rows)

    def eval_rows(self) -> list[EvalRow]:
        """By stage and iteration; within one evaluation in the order they were written."""
        sql = f"SELECT {EVAL_COLUMNS} FROM evals ORDER BY stage, iteration, kind, rowid"
        return list(self._select(eval_from_sql, sql))

    def has_evals(self, stage: str, iteration: int) -> bool:
        sql = "SELECT 1 FROM evals WHERE stage = ? AND iteration = ? LIMIT 1"
        return next(self._select(tuple, sql, stage, iteration), None) is not None

    def digest(self, exclude_prefixes: Sequence[str] = TIMINGS) -> str:
        """sha256 of every metric, completion and evaluation but those whose name begins with one of the prefixes.

        Two runs with the same digest made the same records, bit for bit, in whatever order and number of sittings.
        """
        return digest(lambda sql: self._select(tuple, sql), exclude_prefixes)

    def _select(self, convert: Callable[[tuple[Any, ...]], T], sql: str, *values: Any) -> Iterator[T]:
        with explained(self.path):
            yield from map(convert, self._db.execute(sql, values))


def _write_config(run_dir: Path, recipe_toml: str) -> None:
    with replacing(run_dir / "config.toml") as temporary:
        temporary.write_text(recipe_toml, encoding="utf-8")
