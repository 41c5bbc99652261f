"""Codex rollouts: `<root>/sessions/<year>/<month>/<day>/rollout-<time>-<id>.jsonl`, old ones compressed, archived ones elsewhere.

The first versions wrote `<root>/sessions/rollout-<date>-<id>.json`, one JSON object, whole each time.

A fork or a subagent may begin with the history of another session:

1. `session_meta` names the session that a rollout comes from: `forked_from_id`, or the parent of a subagent. Some versions then write that
   session's lines again, with new times and ordinals; others only refer to them, and a subagent may begin at once with its own task.
2. So the lines themselves decide: as long as what a rollout says was said before in the other one, in the same order, it is copied and
   counts there. Messages are compared by role and text, calls and outputs by the id of the call, counts of tokens by the session's sum.
   Other lines count with those around them.
3. Where the other rollout is gone, an older fork of the same session stands in for it. Where there is none, the copy is all there is,
   and counts.
"""

from __future__ import annotations

import re
import sys
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from streams.sources.agent_transcripts import is_identifier, jsonl_below, number_of, read_agent_file
from streams.sources.codex import CALLS, OUTPUTS, SOURCE, CodexDialect, asked_text, document_lines, in_envelope
from streams.sources.lines import COMPRESSED, Line, decode_line, may_be_copy, open_lines, visible_files
from streams.sources.openclaw.entry import blocks_of
from streams.sources.openclaw.text import text_of
from streams.sources.source import Reading, ReadingContext
from streams.sources.zstd import zstd

DOCUMENT = ".json"
"""Suffix of a rollout that is one JSON object."""
MAX_DOCUMENT = 256 * 1024 * 1024
"""Bytes of the largest such rollout that is read."""
_NAMES = ("rollout-*.jsonl*", f"rollout-*{DOCUMENT}")
_ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
FOLDERS = ("sessions", "archived_sessions")
"""Where the program keeps rollouts."""
Json = dict[str, Any]
_COUNTS = ("input_tokens", "output_tokens", "total_tokens")


def find_codex(path: Path) -> list[Path]:
    """The rollouts at a path, sorted: the file itself, or every `rollout-*.jsonl` below a folder, compressed ones included.

    Hidden files and symbolic links are left out, and so is a compressed rollout beside itself. InputError when there is nothing at
    the path.
    """
    if path.is_file():
        return [path]
    files = [file for file in jsonl_below(path, *_NAMES) if file.suffix in (COMPRESSED, DOCUMENT) or may_be_copy(file.name)]
    plain = set(files)
    return [file for file in files if file.suffix != COMPRESSED or file.with_suffix("") not in plain]


def read_codex(path: Path, context: ReadingContext) -> Reading:
    """Read one rollout; InputError when the file cannot be opened."""
    stem = path.name.removesuffix(COMPRESSED).removesuffix(".jsonl").removesuffix(DOCUMENT)
    named = _ID.search(stem)
    session_id = named.group() if named else stem
    if path.suffix == DOCUMENT:
        return read_agent_file(path, context, CodexDialect(), session_id=session_id, agent=SOURCE, lines_of=_document_lines)
    try:
        copied = _count_copied(path)
    except (OSError, zstd.ZstdError):
        copied = 0  # the reading itself says what is wrong
    return read_agent_file(path, context, CodexDialect(copied), session_id=session_id, agent=SOURCE)


def _document_lines(stream: BinaryIO) -> list[Line]:
    document = stream.read(MAX_DOCUMENT + 1)
    if len(document) > MAX_DOCUMENT:
        raise ValueError(f"has more than {MAX_DOCUMENT} bytes")
    return document_lines(document)


def _count_copied(path: Path) -> int:
    """Return the number of lines at the beginning of a rollout that were copied from another session.

    As long as all that is there was copied, what follows may be: then it is larger than any file. OSError or ZstdError where the
    rollout cannot be read.
    """
    header = read_header(path)
    if header is None or not header.parents:
        return 0
    return max((_matching_lines(path, other) for other in _originals(path, header)), default=0)


def _matching_lines(path: Path, original: Path) -> int:
    try:
        stat = original.stat()
        positions = _positions_in(original, stat.st_size, stat.st_mtime_ns)
    except (OSError, zstd.ZstdError):
        return 0
    copied, reached = 0, 0
    for number, content in _contents(path):
        later = positions.get(content, ())
        index = bisect_left(later, reached)
        if index == len(later):
            return copied
        copied, reached = number, later[index] + 1
    return sys.maxsize


@lru_cache(maxsize=64)
def _positions_in(path: Path, _size: int, _modified_ns: int) -> Mapping[bytes, list[int]]:
    """The positions of each content among the contents of a rollout: many forks may have one parent."""
    positions: dict[bytes, list[int]] = {}
    for position, (_, content) in enumerate(_contents(path)):
        positions.setdefault(content, []).append(position)
    return positions


def _contents(path: Path) -> Iterator[tuple[int, bytes]]:
    """The contents of a rollout's lines as digests, each with its line number; lines that only accompany others are left out."""
    with open_lines(path) as lines:
        for line in lines:
            body = decode_line(line)
            parts = _content(in_envelope(body)) if isinstance(body, dict) else None
            if parts is not None:
                yield line.number, _digest(parts)


def _content(line: Json) -> tuple[Any, ...] | None:
    kind, payload = line.get("type"), line.get("payload")
    if not isinstance(payload, dict):
        return None
    item = payload.get("type")
    if kind == "event_msg" and item == "token_count":
        info = payload.get("info")
        total = info.get("total_token_usage") if isinstance(info, dict) else None
        return ("tokens", *(number_of(total.get(name)) for name in _COUNTS)) if isinstance(total, dict) else None
    if kind != "response_item":
        return None
    if item == "message":
        return _message(payload)
    if item in CALLS or item in OUTPUTS:
        call = payload.get("call_id", payload.get("id"))
        return None if call is None else ("output" if item in OUTPUTS else "call", call)
    return None


def _message(payload: Json) -> tuple[Any, ...] | None:
    """A message of the user or the model. Texts of the program are left out: every rollout has its own."""
    role, blocks = payload.get("role"), blocks_of("content", payload.get("content"))
    if role not in ("user", "assistant") or not isinstance(blocks, list):
        return None
    if role == "user":
        text = asked_text(payload, blocks)
        return None if text is None else (role, text)
    return role, text_of([{**block, "type": "text"} for block in blocks])


def _digest(parts: Iterable[Any]) -> bytes:
    return blake2b("\0".join(map(str, parts)).encode("utf-8", "replace"), digest_size=16).digest()


def _originals(path: Path, header: Header) -> list[Path]:
    """The rollouts that have the copied lines themselves: the parents', else those of older forks of the same session."""
    others = [(file, other) for file in _rollouts_beside(path) if (other := _header_or_none(file)) is not None]
    parents = [file for file, other in others if other.session in header.parents]
    return parents or [
        file
        for file, other in others
        if other.parents & header.parents and (other.begun, other.session) < (header.begun, header.session)
    ]


def _rollouts_beside(path: Path) -> list[Path]:
    """The rollouts of the same home; elsewhere those below the folder of the years, or the file's own."""
    parents = path.resolve().parents
    home = next((folder.parent for folder in parents if folder.name in FOLDERS), None)
    folders = (
        [next(folder for folder in parents if not folder.name.isdigit())] if home is None else [home / name for name in FOLDERS]
    )
    return [
        file
        for folder in folders
        if folder.is_dir()
        for file in visible_files(folder, ("rollout-*.jsonl", f"rollout-*{COMPRESSED}"))
    ]


def _header_or_none(path: Path) -> Header | None:
    try:
        return read_header(path)
    except (OSError, zstd.ZstdError):
        return None


class Header(NamedTuple):
    """The first line of a rollout: its session, when that began, and the sessions it may have copied."""

    session: str
    begun: str
    parents: frozenset[str]


def read_header(path: Path) -> Header | None:
    """Return the header in the first line of a rollout; None where the line names no session."""
    try:
        return _read_header(path)
    except LookupError:
        return None


@lru_cache(maxsize=65_536)
def _read_header(path: Path) -> Header:
    """As `read_header`; LookupError where there is none yet. A header never changes, so it is cached."""
    with open_lines(path) as lines:
        for line in lines:
            body = decode_line(line)
            meta = in_envelope(body) if isinstance(body, dict) else {}
            payload = meta.get("payload")
            if meta.get("type") != "session_meta" or not isinstance(payload, dict) or not is_identifier(payload.get("id")):
                break
            parents = frozenset(filter(is_identifier, _named_parents(payload))) - {payload["id"]}
            return Header(payload["id"], str(payload.get("timestamp") or ""), parents)
    raise LookupError(path)


def _named_parents(meta: Json) -> Iterator[Any]:
    yield meta.get("forked_from_id")
    yield meta.get("parent_thread_id")
    source: Any = meta.get("source")
    for name in ("subagent", "thread_spawn", "parent_thread_id"):
        source = source.get(name) if isinstance(source, dict) else None
    yield source
