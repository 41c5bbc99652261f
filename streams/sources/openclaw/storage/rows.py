# ruff: noqa: S608 - statements are built from names of our own
"""Rows of a session's lines in an OpenClaw database, for each form the file may have.

1. `transcript_events`: a row is a line, as text in `event_json` or, since 2026.9, as zstd in `event_zstd`.
2. `session_transcript_archives`: what a reset or a deletion took out of the rows, as a JSONL file in a blob.
3. `session_transcript_cold_archives`: what lay idle for long, as a compressed file of records in a blob or beside the database,
   in `<agent>/sessions/cold/`. Of its records only those of kind `event` are lines.

Archives are read first, the oldest before the others: the same entry in two places counts once, as it does in one place. What is
compressed is read in bounded memory, and an archive whose bytes are not those of its digest is set aside whole.
"""

from __future__ import annotations

import hashlib
import io
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, cast

import msgspec
import zstandard

from streams.sources.lines import KEPT_BYTES, MAX_LINE, Line, Problem, line_fault, read_lines
from streams.sources.openclaw.trajectory import SKIPPED
from streams.sources.source import LineFault

EVENTS, ARCHIVES, COLD = "transcript_events", "session_transcript_archives", "session_transcript_cold_archives"
SOURCES = {
    EVENTS: frozenset({"session_id", "seq", "event_json"}),
    ARCHIVES: frozenset({"session_id", "generation", "encoding", "archive_blob", "archive_sha256", "created_at"}),
    COLD: frozenset({"session_id", "archive_name", "storage", "archive_blob", "archive_sha256"}),
}
"""The tables that hold lines of transcripts, and the columns that they are read by."""
TRAJECTORY = "trajectory_runtime_events"
TRAJECTORY_COLUMNS = frozenset({"session_id", "seq", "event_json"})
"""The table of the second account of a session's runs, and the columns that it is read by."""
MAX_COMPRESSED = 64 * 1024 * 1024
"""Bytes of the largest archive that is loaded. OpenClaw's own limit for a row is 4 MiB."""
MAX_ARCHIVE = 2 * 1024 * 1024 * 1024
"""Bytes that an archive may have when it is decompressed."""

# A row that is too long is not loaded: only its start is.
_TEXT = (
    "CAST(CASE WHEN length(CAST(event_json AS BLOB)) <= :longest THEN event_json ELSE substr(event_json, 1, :kept) END AS BLOB)"
)
_ROWS = {
    False: f"SELECT {_TEXT}, length(CAST(event_json AS BLOB)), NULL FROM {EVENTS} WHERE session_id = :session ORDER BY seq",
    True: (
        f"SELECT {_TEXT}, coalesce(event_utf8_bytes, length(CAST(event_json AS BLOB))), "
        "CASE WHEN length(event_zstd) <= :longest THEN event_zstd END "
        f"FROM {EVENTS} WHERE session_id = :session ORDER BY seq"
    ),
}
"""The statement for rows without and with compression."""
_TRAJECTORY = (
    f"SELECT {_TEXT}, length(CAST(event_json AS BLOB)) FROM {TRAJECTORY} WHERE session_id = :session "
    + "".join(f'AND instr(substr(event_json, 1, 512), \'"type":"{kind}"\') = 0 ' for kind in SKIPPED)
    + "ORDER BY seq"
)
_ARCHIVED = f"""
SELECT generation, encoding, CASE WHEN length(archive_blob) <= :largest THEN archive_blob END, archive_sha256
FROM {ARCHIVES} WHERE session_id = :session ORDER BY created_at, generation
"""
_COLD = f"""
SELECT archive_name, storage, CASE WHEN length(archive_blob) <= :largest THEN archive_blob END, archive_sha256
FROM {COLD} WHERE session_id = :session
"""


class SessionRows:
    """The lines of one session, from wherever the database keeps them; `faults` tells of archives that could not be read."""

    def __init__(
        self, path: Path, connection: sqlite3.Connection, tables: Mapping[str, frozenset[str]], session: object
    ) -> None:
        self.faults: list[LineFault] = []
        self._path = path
        self._connection = connection
        self._tables = tables
        # Ids come back as bytes from the text factory; the comparison needs them as text again.
        self._session = session.decode("utf-8", "surrogateescape") if isinstance(session, bytes) else session

    def lines(self) -> Iterator[Line]:
        """The lines in order, numbered from 1 over all the places they lie in."""
        number = 0
        for read in (self._archived, self._cold, self._rows):
            for line in read():
                number += 1
                yield msgspec.structs.replace(line, number=number)

    def _rows(self) -> Iterator[Line]:
        if EVENTS not in self._tables:
            return
        statement = _ROWS["event_zstd" in self._tables[EVENTS]]
        values = {"session": self._session, "longest": MAX_LINE, "kept": KEPT_BYTES}
        decompressor = zstandard.ZstdDecompressor()
        for number, (body, size, compressed) in enumerate(self._connection.execute(statement, values), start=1):
            if compressed is None:
                yield Line(number, body or b"null", size or 0, ended=True)
                continue
            try:
                text = _decompressed(decompressor, compressed)
            except (zstandard.ZstdError, _TooLargeError) as error:
                self._set_aside(number, "not_zstd", f"event_zstd: cannot be decompressed ({error})", compressed)
            else:
                yield Line(number, text, len(text), ended=True)

    def trajectory(self) -> Iterator[Line]:
        """The lines of the session's trajectory, without those that only repeat prompts and contexts."""
        if TRAJECTORY not in self._tables:
            return
        values = {"session": self._session, "longest": MAX_LINE, "kept": KEPT_BYTES}
        for number, (body, size) in enumerate(self._connection.execute(_TRAJECTORY, values), start=1):
            yield Line(number, body or b"null", size or 0, ended=True)

    def _archived(self) -> Iterator[Line]:
        for generation, encoding, blob, digest in self._archives(ARCHIVES, _ARCHIVED):
            where = f"{ARCHIVES}, generation {_text(generation)}"
            yield from self._unpacked(where, blob, digest, read_lines, compressed=_text(encoding) == "zstd")

    def _cold(self) -> Iterator[Line]:
        for name, storage, kept, digest in self._archives(COLD, _COLD):
            blob = self._cold_file(_text(name)) if _text(storage) == "file" else kept
            yield from self._unpacked(f"{COLD}, {_text(name)}", blob, digest, _records, compressed=True)

    def _archives(self, table: str, statement: str) -> list[tuple[Any, ...]]:
        """The session's rows of a table of archives; none where the database has no such table."""
        if table not in self._tables:
            return []
        return self._connection.execute(statement, {"session": self._session, "largest": MAX_COMPRESSED}).fetchall()

    def _unpacked(
        self, where: str, blob: bytes | None, digest: bytes, read: Callable[[BinaryIO], Iterator[Line]], *, compressed: bool
    ) -> Iterator[Line]:
        """The lines of one archive, up to where it cannot be decompressed."""
        stream = self._opened(where, blob, digest, compressed=compressed)
        if stream is None:
            return
        try:
            yield from read(stream)
        except (zstandard.ZstdError, _TooLargeError) as error:
            self._set_aside(0, "archive_damaged", f"{where}: cannot be decompressed ({error})", b"")

    def _cold_file(self, name: str) -> bytes | None:
        """The bytes of a cold archive beside the database; None where it is missing, too large, or not named as one."""
        agent = self._path.resolve().parent.parent
        file = agent / "sessions" / "cold" / name
        if Path(name).name != name or not file.is_file() or file.is_symlink() or file.stat().st_size > MAX_COMPRESSED:
            return None
        return file.read_bytes()

    def _opened(self, where: str, blob: bytes | None, digest: bytes, *, compressed: bool) -> BinaryIO | None:
        """The archive's content, where its bytes are those of the digest."""
        if blob is None:
            words = f"{where}: is missing, or has more than {MAX_COMPRESSED} bytes; restore it from a backup and import again"
            self._set_aside(0, "archive_missing", words, b"")
            return None
        if hashlib.sha256(blob).hexdigest() != _text(digest):
            self._set_aside(0, "archive_damaged", f"{where}: its bytes do not match the registered digest", blob)
            return None
        stream: BinaryIO = io.BytesIO(blob)
        if compressed:
            reader = zstandard.ZstdDecompressor().stream_reader(stream)
            stream = cast("BinaryIO", io.BufferedReader(_Bounded(reader, MAX_ARCHIVE)))
        return stream

    def _set_aside(self, number: int, reason: str, detail: str, body: bytes) -> None:
        self.faults.append(line_fault(Line(number, body, len(body), ended=True), Problem(reason, detail)))


def _decompressed(decompressor: zstandard.ZstdDecompressor, compressed: bytes) -> bytes:
    """The text of a compressed row; the size that its frame claims is not believed beyond the longest line."""
    claimed = zstandard.frame_content_size(compressed)
    if claimed > MAX_LINE:
        raise _TooLargeError(f"it claims {claimed} bytes; the longest line that is read has {MAX_LINE}")
    return decompressor.decompress(compressed, max_output_size=MAX_LINE, allow_extra_data=False)


def _records(stream: BinaryIO) -> Iterator[Line]:
    """The lines of a cold archive: the text in its records of kind `event`; a record that is none stays a line, and a fault."""
    for line in read_lines(stream):
        try:
            record = msgspec.json.decode(line.body, type=_ColdRecord)
        except (msgspec.DecodeError, UnicodeDecodeError):
            yield line
            continue
        if record.kind == "event":
            body = record.row.event_json.encode("utf-8", "surrogatepass")
            yield Line(line.number, body, len(body), ended=True)


class _ColdRow(msgspec.Struct):
    event_json: str = ""


class _ColdRecord(msgspec.Struct):
    kind: str
    row: _ColdRow = msgspec.field(default_factory=_ColdRow)


class _TooLargeError(Exception):
    """An archive has more content than is read."""


class _Bounded(io.RawIOBase):
    """Bytes of a compressed stream, up to a bound: a small archive can hold any amount."""

    def __init__(self, stream: zstandard.ZstdDecompressionReader, bound: int) -> None:
        self._stream = stream
        self._left = bound

    def readable(self) -> bool:
        """It is read only."""
        return True

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill the buffer; 0 at the end."""
        data = self._stream.read(len(buffer))
        self._left -= len(data)
        if self._left < 0:
            raise _TooLargeError(f"it holds more than {MAX_ARCHIVE} bytes")
        buffer[: len(data)] = data
        return len(data)


def _text(value: bytes | str) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
