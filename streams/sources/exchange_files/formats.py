"""Formats of files of exchanges: told by the first bytes, and held against what the name of a file says."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import BinaryIO, NamedTuple, cast

import zstandard

from audit.file_kinds import CSV, GZIP, HEAD, PARQUET, TEXT, ZSTANDARD, Kind, binary_kind, exchanges_kind
from schemas.errors import InputError

WORDS = "JSON lines, CSV or Parquet"
UNPACKED_HINT = "Check whether the file was copied completely."


class Format(StrEnum):
    """The formats that hold exchanges, by their names for people."""

    JSON = "JSON"
    CSV = "CSV"
    PARQUET = "Parquet"


SUFFIXES = {
    ".jsonl": Format.JSON,
    ".ndjson": Format.JSON,
    ".json": Format.JSON,
    ".csv": Format.CSV,
    ".tsv": Format.CSV,
    ".parquet": Format.PARQUET,
}
"""What the name of a file says of its format."""
PACKED = {".gz": GZIP, ".zst": ZSTANDARD}
PATTERNS = tuple(f"*{suffix}{packed}" for suffix in SUFFIXES for packed in ("", *PACKED) if not packed or suffix != ".parquet")
_FORMATS: dict[Kind | None, Format] = {CSV: Format.CSV, PARQUET: Format.PARQUET, None: Format.JSON}


class Told(NamedTuple):
    """The format of a file, and how it is packed, if it is."""

    form: Format
    packed: Kind | None


def told(path: Path) -> Told:
    """Return the format of a file. InputError where it holds no exchanges, or something else than its name says."""
    packed = _packed(path)
    with opened(path) as stream:
        head = stream.read(HEAD)
    kind = exchanges_kind(head)
    said = SUFFIXES.get(Path(path.stem).suffix if path.suffix in PACKED else path.suffix)
    if said is Format.CSV and kind is TEXT:
        kind = CSV  # a table of one column has no separator
    if kind not in _FORMATS or (kind is PARQUET and packed is not None):
        assert kind is not None  # noqa: S101 - JSON is a format
        raise InputError(f"{path}: is {kind.name}, not {WORDS}", hint=kind.hint)
    if said not in (None, _FORMATS[kind]):
        name = "JSON" if kind is None else kind.name
        raise InputError(f"{path}: is {name}, not {said} as its name says", hint="Name the file by what it holds.")
    return Told(_FORMATS[kind], packed)


def _packed(path: Path) -> Kind | None:
    try:
        with path.open("rb") as stream:
            kind = binary_kind(stream.read(HEAD))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}", hint="Check the path and its permissions.") from error
    return kind if kind in PACKED.values() else None


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file, unpacking it if it is packed. InputError when it cannot be read or unpacked."""
    try:
        with path.open("rb") as raw:
            kind = binary_kind(raw.read(HEAD))
            raw.seek(0)
            if kind is GZIP:
                with gzip.GzipFile(fileobj=raw) as stream:
                    yield cast("BinaryIO", stream)
            elif kind is ZSTANDARD:
                with zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True) as reader:
                    yield cast("BinaryIO", io.BufferedReader(cast("io.RawIOBase", reader)))
            else:
                yield raw
    except (gzip.BadGzipFile, EOFError, zstandard.ZstdError) as error:
        raise InputError(f"{path}: cannot be unpacked ({error})", hint=UNPACKED_HINT) from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", hint="Check the path and its permissions.") from error


def unlike_exchanges(head: bytes) -> Kind | None:
    """Return the kind of a file that holds no exchanges; None for one that may. What a packed one holds is seen when it is unpacked."""
    kind = exchanges_kind(head)
    return None if kind in (None, CSV, PARQUET, TEXT, GZIP, ZSTANDARD) else kind
