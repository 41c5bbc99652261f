"""File kinds by their first bytes, so that a wrong file is refused with one message instead of one per line."""

from __future__ import annotations

import re
from typing import NamedTuple

HEAD = 8192
"""Number of bytes at the beginning of a file that are read."""


class Kind(NamedTuple):
    """A kind of file: its name with its article, and advice."""

    name: str
    hint: str


_CONVERT = "Write its rows as JSON lines first, in DuckDB for example: COPY (FROM 'FILE') TO 'events.jsonl' (FORMAT json)."
_UNPACK = "Unpack it first and name its files."
_NONE = "Name another file."
EMPTY = Kind("empty", _NONE)
PARQUET = Kind("a Parquet file", _CONVERT)
SQLITE = Kind("a SQLite database", "Import OpenClaw's databases with `driftline import openclaw`.")
CSV = Kind("CSV", _CONVERT)
TRANSCRIPT = Kind("an OpenClaw transcript", "Import it with `driftline import openclaw`.")
CLAUDE_CODE = Kind("a Claude Code transcript", "Import it with `driftline import claude-code`.")
CODEX = Kind("a Codex rollout", "Import it with `driftline import codex`.")
CODEX_LOG = Kind(
    "a log of `codex exec --json`",
    "It lacks prompts and times. Import the rollout that Codex wrote for the same run, under ~/.codex/sessions, with `driftline import codex`.",
)
EVENTS = Kind("a file of runtime events", "Import it with `driftline import events`.")
OTLP = Kind(
    "a file of traces in OTLP's JSON",
    "Start `driftline serve`, and post each line to /v1/traces with the content type application/json; a line that begins with "
    '"resource" as {"resourceSpans": [LINE]}.',
)
SPANS = Kind(
    "a file of spans as printed by a program or exported from Jaeger",
    "Have the program, or a Collector, send OTLP to /v1/traces of `driftline serve` instead.",
)
BINARY = Kind("binary data", _NONE)
TEXT = Kind("text without JSON", _NONE)
ENCODED = Kind("text in another encoding than UTF-8", "Save it as UTF-8.")
GZIP = Kind("a gzip file", _UNPACK)
ZSTANDARD = Kind("a Zstandard file", _UNPACK)
_UTF16 = Kind("text in UTF-16 or UTF-32", "Save it as UTF-8.")
_WEB = Kind("XML or HTML", _NONE)
_PICTURE = Kind("a picture", _NONE)
MAGIC = (
    (0, b"PAR1", PARQUET),
    (0, b"SQLite format 3\0", SQLITE),
    (8, b"DUCK", Kind("a DuckDB database", "Name a database with --db.")),
    (0, b"Obj\x01", Kind("an Avro container", "Produce its records to a topic, or write them as JSON lines first.")),
    (0, b"ORC", Kind("an ORC file", _CONVERT)),
    (0, b"ARROW1", Kind("an Arrow file", _CONVERT)),
    (0, b"\xff\xff\xff\xff", Kind("an Arrow stream", _CONVERT)),
    (0, b"\x1f\x8b", GZIP),
    (0, b"\x28\xb5\x2f\xfd", ZSTANDARD),
    (0, b"BZh", Kind("a bzip2 file", _UNPACK)),
    (0, b"\xfd7zXZ\0", Kind("an xz file", _UNPACK)),
    (0, b"\x04\x22\x4d\x18", Kind("an LZ4 file", _UNPACK)),
    (0, b"7z\xbc\xaf\x27\x1c", Kind("a 7-Zip archive", _UNPACK)),
    (0, b"PK\x03\x04", Kind("a ZIP archive", _UNPACK)),
    (0, b"PK\x05\x06", Kind("a ZIP archive", _UNPACK)),
    (257, b"ustar", Kind("a tar archive", _UNPACK)),
    (0, b"%PDF-", Kind("a PDF", _NONE)),
    (0, b"\x89PNG", _PICTURE),
    (0, b"\xff\xd8\xff", _PICTURE),
    (0, b"GIF8", _PICTURE),
    (0, b"\x89HDF", Kind("an HDF5 file", _CONVERT)),
    (0, b"\x7fELF", Kind("a program", _NONE)),
    (0, b"\xff\xfe", _UTF16),
    (0, b"\xfe\xff", _UTF16),
    (0, b"\0\0\xfe\xff", _UTF16),
)
"""Bytes at a fixed position of every file of a kind."""
_BOM = b"\xef\xbb\xbf"
_JSON_LINE = re.compile(rb"^[ \t]*(?:\{|\[[ \t]*(?:[\{\]\r\n]|$))", re.MULTILINE)
"""The beginning of a line that may be JSON: an object or a list of objects. A log's `[2026-11-01 …` is not."""
_MARKUP = re.compile(rb"\s*<(?:\?xml|!doctype|html|[a-z]+[ >])", re.IGNORECASE)
_SEPARATORS = (b",", b";", b"\t", b"|")
_SEPARATOR_LINE = re.compile(rb'\A"?sep=."?\r?\n', re.IGNORECASE)
_CONTROL = re.compile(rb"[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""Bytes that occur in no text of any encoding. The escape character is not among them, because Japanese encodings use it."""
_SESSION = re.compile(rb'\s*\{[^\n]*"type"\s*:\s*"session"')
_EVENT = re.compile(rb'"events?"\s*:')
_SESSION_ID = re.compile(rb'"session_id"\s*:')
_CLAUDE_CODE = re.compile(rb'\s*\{[^\n]*"sessionId"\s*:')
_CLAUDE_CODE_LINE = re.compile(rb'"(?:uuid|parentUuid|leafUuid|isSidechain)"\s*:')
_STREAM_LOG = re.compile(rb'\s*\{[^\n]*"type"\s*:\s*"(?:system|assistant|user|result|stream_event)"')
"""A line of what `claude -p --output-format stream-json` prints."""
_CODEX_LOG = re.compile(rb'\s*\{[^\n]*"type"\s*:\s*"thread\.started"')
_LOG_LINE = re.compile(rb'"(?:uuid|subtype|parent_tool_use_id)"\s*:')
_CODEX = re.compile(rb'\s*\{[^\n]*"type"\s*:\s*"session_meta"')
_OTLP = re.compile(
    rb'\s*\{\s*(?:"(?:resourceSpans|resource_spans)"\s*:\s*\[|"resource"\s*:\s*\{[^\n]*"(?:scopeSpans|scope_spans)"\s*:\s*\[)'
)
_SPANS = re.compile(
    rb'\s*\{\s*(?:"data"\s*:\s*\[\s*\{\s*"traceID"\s*:|"name"\s*:\s*"[^"\n]*"\s*,\s*"context"\s*:\s*\{\s*"trace_id"\s*:\s*"0x)'
)


def binary_kind(head: bytes) -> Kind | None:
    """Return the kind of a file that is not UTF-8 text, by its first bytes; None if it may be."""
    for offset, magic, kind in MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return kind
    return None


def detect_non_json(head: bytes) -> Kind | None:
    """Return the kind of a file that cannot contain JSON, as lines or a document; None if it may."""
    if not head.removeprefix(_BOM).strip():
        return EMPTY if len(head) < HEAD else None
    kind = binary_kind(head)
    if kind is not None or _JSON_LINE.search(head.removeprefix(_BOM)):
        return kind
    return _detect_text_kind(head)


def _detect_text_kind(head: bytes) -> Kind:
    """Return the kind of a file without JSON."""
    if b"\0" in head:
        return BINARY
    # A UTF-8 table with damaged bytes only loses those rows; a table in another encoding has hardly any valid UTF-8 letters.
    if not _is_utf8(head) and not (_is_damaged_utf8(head) and _has_columns(head)):
        return BINARY if _CONTROL.search(head) else ENCODED
    if _MARKUP.match(head):
        return _WEB
    return CSV if _has_columns(head) else TEXT


def detect_non_events(head: bytes) -> Kind | None:
    """Return the kind of a file without runtime events; None if it may have some."""
    return detect_non_json(head) or _detect_agent_kind(head)


def exchanges_kind(head: bytes) -> Kind | None:
    """Return the kind of a file that may contain exchanges, including `CSV` and `PARQUET`; None for JSON.

    Text that does not begin with JSON is not JSON: a cell of a table may have some at the beginning of a line.
    """
    text = head.removeprefix(_BOM).lstrip()
    if not text:
        return EMPTY
    kind = binary_kind(head)
    if kind is not None:
        return kind
    if text[:1] not in (b"{", b"["):
        return _detect_text_kind(head)
    kind = detect_non_json(head) or _detect_trace_kind(text)
    if kind is not None:
        return kind
    agent = _detect_agent_kind(head)
    # Other programs write session ids in the same way.
    if agent is CLAUDE_CODE and not _CLAUDE_CODE_LINE.search(head.split(b"\n", 1)[0]):
        return None
    return agent


def detect_non_transcript(head: bytes) -> Kind | None:
    """Return the kind of a file that is not an OpenClaw transcript; None if it may be, and for SQLite.

    A SQLite database may contain transcripts.
    """
    kind = detect_non_json(head)
    if kind is not None:
        return None if kind is SQLITE else kind
    return EVENTS if not _is_transcript(head) and _is_events(head) else None


def detect_non_claude_code(head: bytes) -> Kind | None:
    """Return the kind of a file that is not a Claude Code transcript; None if it may be."""
    return _detect_other_kind(head, CLAUDE_CODE)


def detect_non_codex(head: bytes) -> Kind | None:
    """Return the kind of a file that is not a Codex rollout, compressed or not; None if it may be."""
    return None if binary_kind(head) is ZSTANDARD else _detect_other_kind(head, CODEX)


def _detect_other_kind(head: bytes, expected: Kind) -> Kind | None:
    """Return the kind of a file if it is known and not the expected one."""
    kind = detect_non_json(head) or _detect_agent_kind(head)
    if kind is None and _is_events(head):
        kind = EVENTS
    return None if kind is expected else kind


def _detect_agent_kind(head: bytes) -> Kind | None:
    """Return the program of a transcript, by its first line; None for another file."""
    if _is_transcript(head):
        return TRANSCRIPT
    head = head.removeprefix(_BOM)
    if _CODEX.match(head):
        return CODEX
    if _CODEX_LOG.match(head):
        return CODEX_LOG
    first_line = head.split(b"\n", 1)[0]
    is_transcript = _CLAUDE_CODE.match(head) and not _SESSION_ID.search(first_line) and not _EVENT.search(first_line)
    is_stream_log = _STREAM_LOG.match(head) and _SESSION_ID.search(first_line) and _LOG_LINE.search(first_line)
    return CLAUDE_CODE if is_transcript or is_stream_log else None


def _detect_trace_kind(text: bytes) -> Kind | None:
    """Return the kind of a file of traces, by its first members; None for another file."""
    if _OTLP.match(text):
        return OTLP
    return SPANS if _SPANS.match(text) else None


def _is_events(head: bytes) -> bool:
    return bool(_EVENT.search(head) and _SESSION_ID.search(head))


def _is_transcript(head: bytes) -> bool:
    return bool(_SESSION.match(head.removeprefix(_BOM))) and b'"events"' not in head.split(b"\n", 1)[0]


def _is_utf8(head: bytes) -> bool:
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return len(head) == HEAD and error.start > HEAD - 4  # cut within a character
    return True


def _is_damaged_utf8(head: bytes) -> bool:
    """Return whether most non-ASCII letters are valid UTF-8."""
    non_ascii = [character for character in head.decode(errors="surrogateescape") if character > "\x7f"]
    invalid_count = sum("\udc80" <= character <= "\udcff" for character in non_ascii)
    return len(non_ascii) >= 2 * invalid_count


def _has_columns(head: bytes) -> bool:
    """Return whether the first lines have the same separators, like those of a table."""
    lines = [line for line in _SEPARATOR_LINE.sub(b"", head.removeprefix(_BOM), count=1).splitlines()[:5] if line.strip()]
    if len(head) == HEAD:
        lines = lines[:-1] or lines
    if not lines:
        return False
    return any(0 < lines[0].count(mark) == lines[-1].count(mark) for mark in _SEPARATORS)
