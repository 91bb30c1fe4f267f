"""The manifest of a checkpoint: size and sha256 of every file, so that any later change of a single bit is noticed."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from oncurve.types import OncurveError

FORMAT = 1
MANIFEST = "manifest.json"
FILE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")


class CheckpointError(OncurveError):
    """A checkpoint could not be written or read; the text names it and the reason."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _File(_Part):
    size: int
    sha256: str


class _Manifest(_Part):
    format: int
    files: dict[str, _File]


def manifest_text(directory: Path) -> str:
    """The manifest of all files that are in ``directory`` now."""
    files = {path.name: _File(size=path.stat().st_size, sha256=_sha256(path)) for path in sorted(directory.iterdir())}
    return _Manifest(format=FORMAT, files=files).model_dump_json(indent=1) + "\n"


def verified_files(directory: Path) -> list[Path]:
    """The files of a checkpoint, each read and found to be what was written (about a second per GB).

    Raises:
        CheckpointError: one is missing, unreadable or changed, or the manifest itself is.
    """
    try:
        manifest = _Manifest.model_validate_json((directory / MANIFEST).read_bytes())
        if manifest.format != FORMAT:
            raise CheckpointError(
                f"{directory} has format {manifest.format}; this version of Oncurve reads format {FORMAT}"
            )
        for name, written in manifest.files.items():
            _verify(directory, name, written)
    except FileNotFoundError as error:
        raise CheckpointError(f"{directory}: {Path(error.filename).name} is missing") from error
    except OSError as error:
        raise CheckpointError(f"{directory}: {reason(error)}") from error
    except ValidationError as error:
        detail = error.errors()[0]["msg"]
        raise CheckpointError(f"{directory}: {MANIFEST} is not what was written ({detail})") from error
    return [directory / name for name in manifest.files]


def _verify(directory: Path, name: str, written: _File) -> None:
    if not FILE_NAME.fullmatch(name):
        raise CheckpointError(f"{directory}: {MANIFEST} lists {name!r}, which is not a plain file name")
    size = (directory / name).stat().st_size
    if size != written.size:
        raise CheckpointError(f"{directory}: {name} has {size:,} bytes, {written.size:,} were written")
    if _sha256(directory / name) != written.sha256:
        raise CheckpointError(f"{directory}: {name} is not what was written (its sha256 differs)")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def reason(error: Exception) -> str:
    """What went wrong, in one line, for a message."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror + (f" ({error.filename})" if error.filename else "")
    return str(error) or type(error).__name__
