r"""Files of JSON lines: found below a folder, opened plain or compressed, and read as JSON objects in bounded memory.

1. A line longer than MAX_LINE_BYTES is skipped without being loaded.
2. A line is one JSON object in UTF-8, at most MAX_DEPTH levels deep. NaN and numbers out of the range of a float are not JSON.
3. Lone surrogates in escapes (`\ud83d`) are kept. Readers reject them in ids and repair them in texts (`audit.surrogates`).
4. The last line of a file is torn if it has no line break and is not a complete object: its writer has not finished it.
5. Hidden files and files behind symbolic links are skipped, because other programs write these folders.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec

from audit.surrogates import json_bytes, repair_text, repair_value
from schemas.bounds import MAX_DEPTH, is_too_deep
from schemas.validation_messages import decoding_words
from streams.sources.source import LineFault
from streams.sources.zstd import zstd

MAX_LINE_BYTES = 16 * 1024 * 1024
"""Maximum size of a line that is read."""
MAX_FAULT_BODY_BYTES = 64 * 1024
"""Maximum size of the part of a faulty line that is kept."""
_BOM = b"\xef\xbb\xbf"
_SKIP_CHUNK_BYTES = 1024 * 1024
_decode = msgspec.json.Decoder().decode
COMPRESSED = ".zst"
"""Suffix of compressed transcripts. Programs compress a transcript when it is finished."""
_READ_CHUNK_BYTES = 256 * 1024
_JSON_LINES_NAME = re.compile(r"\.jsonl(?:~|[.\-_ ][^/]{0,120})?\Z")
_EXCLUDED_SUFFIXES = (".zst", ".gz", ".tmp", ".lock", ".partial", ".swp")


class Line(msgspec.Struct, frozen=True, gc=False):
    """One line without its line break. `ended` is True if it had one. If the line is too long, `body` is its start and `digest` is set."""

    number: int
    body: bytes
    size: int
    ended: bool
    digest: str | None = None

    @property
    def is_whole(self) -> bool:
        """True if no text in the line can hold a lone surrogate. Only an escape can produce one."""
        return not _may_hold_surrogates(self.body)


def _may_hold_surrogates(body: bytes) -> bool:
    return b"\\u" in body and (b"\\ud" in body or b"\\uD" in body)


class Problem(NamedTuple):
    """The reason why a line cannot be read: a code, and a message that names the field."""

    reason: str
    detail: str


def read_lines(stream: BinaryIO) -> Iterator[Line]:
    """Yield the lines of a binary stream. Blank lines are skipped, but they count for line numbers."""
    number = 0
    while raw := stream.readline(MAX_LINE_BYTES + 2):
        number += 1
        ended = raw.endswith(b"\n")
        body = raw.rstrip(b"\r\n") if ended else raw
        if number == 1:
            body = body.removeprefix(_BOM)
        size = len(body)
        if size > MAX_LINE_BYTES:
            yield _skip_long_line(stream, number, raw, ended=ended)
        elif size and not body.isspace():
            yield Line(number, body, size, ended)


def _skip_long_line(stream: BinaryIO, number: int, head: bytes, *, ended: bool) -> Line:
    """Skip the remainder of a line that is too long, and return the line with its start, length and digest."""
    digest = hashlib.sha256(head.rstrip(b"\n") if ended else head)
    size = len(head) - ended
    while not ended and (chunk := stream.readline(_SKIP_CHUNK_BYTES)):
        ended = chunk.endswith(b"\n")
        digest.update(chunk.rstrip(b"\n"))
        size += len(chunk) - ended
    return Line(number, head[:MAX_FAULT_BODY_BYTES], size, ended, digest.hexdigest())


def decode_line(line: Line) -> dict[str, Any] | Problem:
    """Return the line's JSON object, or why it is not one."""
    body = line.body
    if line.size > MAX_LINE_BYTES:
        return Problem("too_long", f"the line has {line.size} bytes; the limit is {MAX_LINE_BYTES}")
    try:
        value = _decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        value = _decode_or_explain(body)
        if isinstance(value, Problem):
            return value
    if type(value) is not dict:
        return Problem("not_an_object", f"the line is {json_type(value)}, not an object")
    # Counting brackets is cheap and clears most lines, so that few are walked.
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and is_too_deep(value):
        return Problem("too_deep", f"the line nests deeper than {MAX_DEPTH} levels")
    return value


def _decode_or_explain(body: bytes) -> Any:
    try:
        return decode_json(body)
    except UnicodeDecodeError as error:
        return Problem("not_utf8", f"the line is not UTF-8: {error.reason} at byte {error.start}")
    except RecursionError:
        return Problem("too_deep", f"the line nests deeper than {MAX_DEPTH} levels")
    except msgspec.DecodeError as error:
        return Problem("not_json", f"the line is not JSON: {decoding_words(error)}")


def is_torn(line: Line, value: dict[str, Any] | Problem) -> bool:
    """Return whether the line is the unfinished last line of a file."""
    return not line.ended and isinstance(value, Problem)


def line_fault(line: Line, problem: Problem) -> LineFault:
    """Return the fault that reports the line."""
    digest = line.digest or hashlib.sha256(line.body).hexdigest()
    return LineFault(line.number, problem.reason, problem.detail, line.body[:MAX_FAULT_BODY_BYTES], line.size, digest)


def value_fault(line: Line, value: Any, problem: Problem) -> LineFault:
    """Return the fault for a part of a line. Its body is only that part, so that many faults take no more space than the line."""
    body = json_bytes(value)
    return line_fault(Line(line.number, body, len(body), ended=True), problem)


def json_type(value: Any) -> str:
    """Return the JSON name of the value's type, with its article."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def decode_json(body: bytes) -> Any:
    r"""Return the value of a JSON text, lone surrogates (`\ud83d`) included.

    Raises msgspec.DecodeError, UnicodeDecodeError or RecursionError if it is not JSON.
    """
    try:
        return msgspec.json.decode(body)
    except msgspec.DecodeError:
        value = _decode_with_surrogates(body)
        if value is None:
            raise
        return value


def _decode_with_surrogates(body: bytes) -> Any:
    """Return the value of a text that is JSON except for lone surrogates; None if it is not."""
    if not _may_hold_surrogates(body):
        return None
    try:
        value = json.loads(body, object_pairs_hook=_repair_names)
        # Python's parser also accepts numbers that are not JSON, so the strict parser checks the repaired value.
        msgspec.json.decode(json.dumps(repair_value(value), allow_nan=False))
    except (ValueError, RecursionError, msgspec.DecodeError):
        return None
    return value


def _repair_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return the object of these members with repaired names. Names are never ids, so repairing them is safe."""
    return {repair_text(name): value for name, value in pairs}


@contextmanager
def open_lines(path: Path) -> Iterator[Iterator[Line]]:
    """Open a transcript, compressed or not, as lines. Raises OSError or ZstdError if it cannot be read."""
    with open_stream(path) as stream:
        yield read_lines(stream)


@contextmanager
def open_stream(path: Path) -> Iterator[BinaryIO]:
    """Open a transcript, compressed or not. Raises OSError or ZstdError if it cannot be read."""
    with path.open("rb") as stream:
        if path.suffix != COMPRESSED:
            yield stream
            return
        with io.BufferedReader(cast("io.RawIOBase", _CompressedTranscript(stream)), _READ_CHUNK_BYTES) as reader:
            yield cast("BinaryIO", reader)


class _CompressedTranscript(zstd.ZstdFile):
    """A compressed transcript. If it was cut off, it ends there instead of raising, so that its complete lines are still read."""

    def readinto(self, buffer: bytearray | memoryview) -> int:  # type: ignore[override]
        """Fill the buffer with the next decompressed bytes and return their number; 0 at the end."""
        try:
            return self.readinto1(buffer)
        except EOFError:
            return 0


def may_be_copy(name: str) -> bool:
    """Return whether a file of this name is a JSON lines file or a backup of one: `a.jsonl`, `a.jsonl.bak`, `a.jsonl~`."""
    return _JSON_LINES_NAME.search(name) is not None and not name.endswith(_EXCLUDED_SUFFIXES)


def visible_files(folder: Path, patterns: Iterable[str]) -> list[Path]:
    """Return the files below a folder that match a pattern, sorted. Hidden files and files behind symbolic links are left out."""
    files = {file for pattern in patterns for file in folder.rglob(pattern) if file.is_file()}
    return sorted(file for file in files if not file.name.startswith(".") and not is_linked(file, folder))


def is_linked(file: Path, folder: Path) -> bool:
    """Return whether the path from the folder to the file contains a symbolic link, which could lead to any file."""
    return any(step.is_symlink() for step in (file, *file.parents) if folder in step.parents)
