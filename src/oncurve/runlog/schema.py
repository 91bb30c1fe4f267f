"""The tables of ``run.sqlite``, and opening one so that every way to fail names the file and what to do."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from oncurve.runlog.columns import DamagedRow
from oncurve.runlog.files import on_network, replacing
from oncurve.types import OncurveError

DATABASE = "run.sqlite"
FORMAT_VERSION = 2
"""2: completions have token_advantages and token_values."""
_ADDED = ("token_advantages", "token_values")

SCHEMA = """
-- format_version, recipe (JSON), created (UTC), oncurve (version), status (running | stopped | finished), digests
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;

-- stage sft: iteration 0, step = optimizer step. grpo: iteration from 1, step = optimizer steps done at its end.
-- NULL is a value that was NaN.
CREATE TABLE metrics (
    stage TEXT, iteration INTEGER, step INTEGER, name TEXT, value REAL,
    PRIMARY KEY (stage, iteration, step, name)
) WITHOUT ROWID;
CREATE INDEX metrics_by_name ON metrics (name, stage, iteration, step);

-- split: train | eval_greedy | eval_sampled. Iteration 0 is the evaluation before GRPO.
-- token_ids: little-endian int32; the log-probs: little-endian float32, nats per token. reward NULL is unscored.
-- token_advantages and token_values (of a critic): as the log-probs; NULL where all tokens have one advantage.
-- Text is TEXT; the rare text that UTF-8 cannot hold (lone surrogates) is a BLOB, UTF-8 with the surrogates passed.
CREATE TABLE completions (
    split TEXT, stage TEXT, iteration INTEGER, prompt_id INTEGER, sample INTEGER,
    prompt TEXT, completion TEXT, token_ids BLOB, sampler_logprobs BLOB, old_logprobs BLOB, ref_logprobs BLOB,
    reward REAL, advantage REAL, parts TEXT, extras TEXT, truncated INTEGER,
    token_advantages BLOB, token_values BLOB,
    PRIMARY KEY (split, stage, iteration, prompt_id, sample)
);

-- kind: greedy | sampled. low and high: the 95% interval. n: prompts.
CREATE TABLE evals (
    stage TEXT, iteration INTEGER, kind TEXT, name TEXT, value REAL, low REAL, high REAL, n INTEGER,
    PRIMARY KEY (stage, iteration, kind, name)
);
"""


class RunLogError(OncurveError):
    """A run's record that cannot be made, read or written; the text names the file."""


def create_database(path: Path, meta: dict[str, str]) -> None:
    """Make an empty database; it appears under its name only when whole. Raises OSError and sqlite3.Error."""
    with replacing(path) as temporary, closing(sqlite3.connect(temporary, isolation_level=None)) as db:
        # Only a database without a journal beside it can be renamed; a torn temporary file needs none.
        db.execute("PRAGMA journal_mode = MEMORY")
        db.executescript(SCHEMA)
        db.executemany("INSERT INTO meta VALUES (?, ?)", {"format_version": str(FORMAT_VERSION), **meta}.items())


def connect(path: Path, readonly: bool) -> sqlite3.Connection:
    """Open a database that ``create_database`` made.

    Raises RunLogError: there is none, it is damaged, it is something else's, or a newer Oncurve wrote it.
    """
    if not path.is_file():
        raise RunLogError(f"{path.parent} is not a run directory: it has no {path.name}")
    with explained(path):
        uri = f"{path.resolve().as_uri()}?mode={'ro' if readonly else 'rw'}"
        db = sqlite3.connect(uri, uri=True, isolation_level=None, timeout=30.0)
        db.text_factory = _text
        try:
            if _check_format(db, path) == 1:
                _add_columns(db, readonly)
            if not readonly:
                # WAL lets the board read while a run writes. With it, NORMAL cannot tear a transaction; a power cut may
                # lose the last ones, never those before a checkpoint's fsync.
                db.execute(f"PRAGMA journal_mode = {'DELETE' if on_network(path) else 'WAL'}")
                db.execute("PRAGMA synchronous = NORMAL")
        except BaseException:
            db.close()
            raise
    return db


def _add_columns(db: sqlite3.Connection, readonly: bool) -> None:
    """Bring format 1 up to 2: for a reader, in its own view of the table alone."""
    if readonly:
        added = ", ".join(f"NULL AS {name}" for name in _ADDED)
        db.execute(f"CREATE TEMP VIEW completions AS SELECT *, {added} FROM main.completions")
        return
    with db:
        db.execute("BEGIN IMMEDIATE")
        for name in _ADDED:
            db.execute(f"ALTER TABLE completions ADD COLUMN {name} BLOB")
        db.execute("UPDATE meta SET value = '2' WHERE key = 'format_version'")


def _check_format(db: sqlite3.Connection, path: Path) -> int:
    tables = {name for (name,) in db.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not {"meta", "metrics", "completions", "evals"} <= tables:
        raise RunLogError(f"{path} is an SQLite file, but not the record of an Oncurve run; move it away")
    row = db.execute("SELECT value FROM meta WHERE key = 'format_version'").fetchone()
    if row is None or not re.fullmatch("[0-9]{1,9}", str(row[0])):
        raise RunLogError(f"{path} does not say which format it has: its format_version is {row and row[0]!r:.60}")
    if int(row[0]) > FORMAT_VERSION:
        raise RunLogError(
            f"{path} has format {row[0]}, this Oncurve reads formats up to {FORMAT_VERSION}; upgrade Oncurve to read it"
        )
    return int(row[0])


def _text(stored: bytes) -> str | bytes:
    """What is not UTF-8 stays bytes: who reads the row can say which row it is, and sqlite3 could not."""
    try:
        return stored.decode("utf-8")
    except UnicodeDecodeError:
        return stored


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn what the disk does to a database, or to a row in it, into an error that names it. A wrong call stays a wrong
    call."""
    try:
        yield
    except (sqlite3.IntegrityError, sqlite3.ProgrammingError):
        raise
    except sqlite3.Error as error:
        raise RunLogError(f"{path}: {str(error)[:160]}") from error
    except DamagedRow as error:
        raise RunLogError(f"{path}: {error}") from error
