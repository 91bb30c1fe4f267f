"""The completions table of TRL: ``step, prompt, completion``, one column per reward function, extras, ``advantage``.
Of Oncurve's own are ``reward``, ``kept`` and ``truncated``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from oncurve.runlog.files import replacing
from oncurve.runlog.log import RunLog
from oncurve.runlog.rows import finite
from oncurve.runlog.schema import RunLogError

FORMATS = ("jsonl", "parquet")
_FIXED = ("step", "prompt", "completion", "reward", "advantage", "kept", "truncated")
_ROWS_AT_ONCE = 512


@dataclass(frozen=True)
class _Columns:
    """Which columns the table has beside the fixed ones; every row has all of them."""

    rewards: dict[str, str]
    """Reward function -> column."""
    extras: dict[str, str]
    """Extra -> column."""
    types: dict[str, set[type]]
    """Extra -> the types of its values, None left out."""


def export(run_dir: Path | str, fmt: str = "jsonl", out: Path | str | None = None) -> Path:
    """Write every training completion of a run to ``out`` (default: ``completions.<fmt>`` in the run directory).

    ``step`` is the optimizer step at the end of the iteration, as TRL counts. ``reward`` is what advantages were made
    of: the weighted sum, less a punishment of length and a KL in the reward. ``kept``: the completion was trained on,
    and not left out by dynamic sampling or ``train_fraction``, nor of an iteration without any update. ``truncated``:
    the token limit ended it. A reward that was not scored is null. A reward function or extra that is called like
    another column gets the prefix ``reward/`` or ``extra/``. The file appears whole or not at all.

    Raises:
        RunLogError: no such run, an unknown format, no pyarrow for parquet, or a place that cannot be written.
    """
    if fmt not in FORMATS:
        raise RunLogError(f"cannot export to {fmt!r}: the formats are {' and '.join(FORMATS)}")
    pyarrow = _pyarrow() if fmt == "parquet" else None
    path = Path(out) if out is not None else Path(run_dir) / f"completions.{fmt}"
    with RunLog.open(run_dir, readonly=True) as log:
        columns = _columns(log)
        try:
            with replacing(path) as temporary:
                if pyarrow is None:
                    _write_jsonl(temporary, _table(log, columns))
                else:
                    _write_parquet(temporary, _table(log, columns), columns, pyarrow)
        except OSError as error:
            raise RunLogError(f"cannot write {path}: {error}") from error
    return path


def _columns(log: RunLog) -> _Columns:
    rewards: dict[str, str] = {}
    types: dict[str, set[type]] = {}
    for row in log.iter_completions("train"):
        for name in row.parts:
            rewards.setdefault(name, f"reward/{name}" if name in _FIXED else name)
        for name, value in row.extras.items():
            types.setdefault(name, set())
            if value is not None:
                types[name].add(type(value))
    taken = {*_FIXED, *rewards.values()}
    return _Columns(rewards, {name: f"extra/{name}" if name in taken else name for name in types}, types)


def _table(log: RunLog, columns: _Columns) -> Iterator[dict[str, Any]]:
    steps = {
        iteration: step for name in log.metric_names("grpo")[:1] for iteration, step, _ in log.series(name, "grpo")
    }
    updated = {iteration for iteration, _, _ in log.series("loss", "grpo")}
    for row in log.iter_completions("train"):
        yield {
            "step": steps.get(row.iteration, row.iteration),
            "prompt": row.prompt,
            "completion": row.completion,
            "reward": row.reward,
            **{column: row.parts.get(name) for name, column in columns.rewards.items()},
            **{column: row.extras.get(name) for name, column in columns.extras.items()},
            "advantage": row.advantage,
            "kept": row.old_logprobs is not None and row.iteration in updated,
            "truncated": row.truncated,
        }


def _write_jsonl(path: Path, table: Iterable[dict[str, Any]]) -> None:
    with path.open("w", encoding="ascii", newline="\n") as file:
        for row in table:
            # Escaped to ASCII: no reader can take a U+2028 or a lone surrogate in a completion for the end of the line.
            file.write(json.dumps(finite(row), allow_nan=False) + "\n")


def _write_parquet(path: Path, table: Iterator[dict[str, Any]], columns: _Columns, pyarrow: Any) -> None:
    number, text = pyarrow.float64(), pyarrow.string()
    extras = {column: _extra_type(columns.types[name], pyarrow) for name, column in columns.extras.items()}
    mixed = [column for name, column in columns.extras.items() if not _is_plain(columns.types[name])]
    schema = pyarrow.schema(
        {"step": pyarrow.int64(), "prompt": text, "completion": text, "reward": number}
        | dict.fromkeys(columns.rewards.values(), number)
        | extras
        | {"advantage": number, "kept": pyarrow.bool_(), "truncated": pyarrow.bool_()}
    )
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as writer:
        while rows := list(islice(table, _ROWS_AT_ONCE)):
            for row in rows:
                row |= {column: json.dumps(row[column]) for column in mixed if row[column] is not None}
            clean = [{column: _utf8(value) for column, value in row.items()} for row in rows]
            writer.write_table(pyarrow.Table.from_pylist(clean, schema=schema))


def _is_plain(types: set[type]) -> bool:
    return types <= {bool} or types <= {int, float} or types <= {str}


def _extra_type(types: set[type], pyarrow: Any) -> Any:
    """A column of one kind keeps it; what is mixed or nested is written as JSON text."""
    if types and types <= {bool}:
        return pyarrow.bool_()
    return pyarrow.float64() if types and types <= {int, float} else pyarrow.string()


def _pyarrow() -> Any:
    try:
        import pyarrow  # noqa: PLC0415
        import pyarrow.parquet  # noqa: PLC0415
    except ImportError as error:
        raise RunLogError("parquet needs pyarrow: pip install 'oncurve[parquet]' (or export to jsonl)") from error
    return pyarrow


def _utf8(value: Any) -> Any:
    """Parquet text is UTF-8, which has no lone surrogates: they become U+FFFD."""
    if not isinstance(value, str) or value.isascii():
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
