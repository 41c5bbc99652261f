"""Files of other agents' transcripts: found below a folder, read by a dialect."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from schemas.bounds.limits import MAX_ID
from schemas.errors import InputError
from streams.sources.dialects import Dialect
from streams.sources.folders import visible_files
from streams.sources.lines import Line, read_lines
from streams.sources.openclaw.reader import read_session
from streams.sources.source import Reading, ReadingContext

COMPRESSED = ".zst"
"""Suffix of a transcript that was compressed when nothing was added to it any more."""


def jsonl_below(path: Path, *patterns: str) -> list[Path]:
    """The files of these names below a folder, sorted, without hidden ones and symbolic links; InputError where there is no folder."""
    if not path.is_dir():
        raise InputError(f"{path}: does not exist", hint="Give a transcript, or a folder of them.")
    return visible_files(path, patterns)


def read_agent_file(
    path: Path,
    context: ReadingContext,
    dialect: Dialect,
    *,
    session_id: str,
    agent: str,
    lines_of: Callable[[BinaryIO], Iterable[Line]] = read_lines,
) -> Reading:
    """Read one transcript; InputError when it cannot be opened, decompressed or is none.

    `session_id` and `agent` count where the lines, or the context, say nothing else. `lines_of` takes the file apart; its ValueError says
    why it is none.
    """
    try:
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        is_left = context.ingested_at - written > context.session_gap
        with _opened(path) as stream:
            return read_session(
                lines_of(stream), context, session_id=session_id[:MAX_ID], agent=agent, is_left=is_left, dialect=dialect
            )
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", hint="Check the path and its permissions.") from error
    except zstandard.ZstdError as error:
        raise InputError(
            f"{path}: cannot be decompressed ({error})", hint="Check whether the file was copied completely."
        ) from error
    except ValueError as error:
        raise InputError(f"{path}: {error}", hint="Check whether the file was copied completely.") from error


@contextmanager
def open_lines(path: Path) -> Iterator[Iterator[Line]]:
    """Open a transcript, compressed or not, for its lines; OSError or ZstdError where it cannot be read."""
    with _opened(path) as stream:
        yield read_lines(stream)


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    with path.open("rb") as stream:
        if path.suffix != COMPRESSED:
            yield stream
            return
        with zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True) as reader:
            yield cast("BinaryIO", _LineReader(reader))


class _LineReader:
    """Lines of a decompressed stream, which cannot give lines by itself, in bounded memory."""

    def __init__(self, reader: zstandard.ZstdDecompressionReader) -> None:
        self._reader = reader
        self._ahead = b""

    def readline(self, limit: int) -> bytes:
        """The next line with its end, or its first `limit` bytes; nothing at the end."""
        parts, size, piece = [], 0, self._ahead
        while True:
            piece = piece or self._reader.read(_CHUNK)
            end = piece.find(b"\n") + 1
            cut = min(end or len(piece), limit - size)
            parts.append(piece[:cut])
            size += cut
            self._ahead = piece[cut:]
            if not piece or size == limit or (end and cut == end):
                return b"".join(parts)
            piece = b""


_CHUNK = 256 * 1024
