"""Files of lines, compressed or not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, cast

import zstandard

from streams.sources.lines import Line, read_lines

COMPRESSED = ".zst"
"""Suffix of a transcript that was compressed when nothing was added to it any more."""


@contextmanager
def open_lines(path: Path) -> Iterator[Iterator[Line]]:
    """Open a transcript, compressed or not, for its lines; OSError or ZstdError where it cannot be read."""
    with open_stream(path) as stream:
        yield read_lines(stream)


@contextmanager
def open_stream(path: Path) -> Iterator[BinaryIO]:
    """Open a transcript, compressed or not; OSError or ZstdError where it cannot be read."""
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
