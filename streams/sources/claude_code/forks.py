"""Copied lines: `claude --fork-session` begins a new transcript with the lines of another, their `uuid` kept, their session id not.

1. Nothing in a copied line says so. It counts where it was written first: in the transcript of the same folder that was begun earlier.
2. What stands before the conversation tells when a transcript was begun: a prompt that was queued, or the snapshots of files of all
   prompts. A transcript whose conversation begins long before that is a fork; so is one that begins with the same line as an earlier one.
3. Other programs write a history again with new uuids and times. Then the ids of the model's messages are the same: a transcript whose
   first message another one has, which was begun earlier, is a copy of it as far as their messages are the same.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from functools import lru_cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple

from schemas.bounds.limits import MAX_ID
from streams.sources.agent_entries import is_identifier, moment
from streams.sources.claude_code.messages import texts_of
from streams.sources.lines import decode_line, read_lines
from streams.sources.openclaw.entry import blocks_of

HEAD_LINES = 4096
"""Lines at the beginning of a transcript within which its conversation begins: a fork has one for each prompt before it."""
MARGIN = timedelta(seconds=5)
"""The time by which a transcript that is no fork may seem younger than its first line: both are written at once."""

_UUID = re.compile(rb'"uuid"\s*:\s*"([^"\\]{1,256})"')
_MESSAGE_ID = re.compile(rb'"id"\s*:\s*"(msg_[^"\\]{1,256})"')
"""Ids as Anthropic gives them: those that gateways make up may be the same in every session."""

_SIDECHAIN = re.compile(rb'"isSidechain"\s*:\s*true')


class Copied(NamedTuple):
    """What a transcript has from other ones.

    Of earlier ones these are uuids of lines, ids of the model's messages, and digests of questions; `by_subagents` are uuids and ids of
    messages in the transcripts of its subagents.
    """

    uuids: frozenset[str]
    messages: frozenset[str]
    questions: frozenset[bytes]
    by_subagents: frozenset[str] = frozenset()


NOTHING_COPIED = Copied(frozenset(), frozenset(), frozenset())


class Head(NamedTuple):
    """The beginning of a transcript: the time, and the uuid, the time and the session of the first line of its conversation."""

    begun: datetime
    uuid: str
    at: datetime
    session: str


def read_copied(path: Path) -> Copied:
    """Return what the transcript has from earlier ones of its folder; nothing where it is no fork."""
    head = read_head(path)
    if head is None:
        return NOTHING_COPIED
    uuids: set[str] = set()
    messages: set[str] = set()
    questions: set[bytes] = set()
    first_message = _first_message(path)
    folder = _folder(path.parent, path.parent.stat().st_mtime_ns)
    is_late = head.begun - head.at > MARGIN
    for other in folder.candidates(head.uuid, first_message, every=is_late):
        older = None if other == path else read_head(other)
        # Other accounts of the same session are read with it (`copies`).
        if older is None or older.session == head.session or (older.begun, other.name) >= (head.begun, path.name):
            continue
        if older.uuid == head.uuid or (is_late and older.begun - MARGIN <= head.at):
            uuids |= _uuids(other, head.uuid)
        if first_message is not None and head.begun - older.begun > MARGIN and first_message in _message_ids(other):
            messages |= _message_ids(other)
            questions |= _questions(other)
    return Copied(frozenset(uuids), frozenset(messages), frozenset(questions), _ids_of_subagents(path))


def _ids_of_subagents(path: Path) -> frozenset[str]:
    """The uuids and ids of messages that the subagents of a session have in transcripts of their own.

    None where the transcript has no line of a sidechain: today's versions write none into it, and a session may have many subagents.
    """
    if _SIDECHAIN.search(path.read_bytes()) is None:
        return frozenset()
    ids: set[str] = set()
    for file in sorted((path.parent / path.stem / "subagents").rglob("*.jsonl")):
        ids |= _uuids(file) | _message_ids(file)
    return frozenset(ids)


class _Folder(NamedTuple):
    """The transcripts of a folder: all, by the uuid of their first lines, and by the messages they have."""

    files: tuple[Path, ...]
    by_uuid: Mapping[str, list[Path]]
    by_message: Mapping[str, list[Path]]

    def candidates(self, uuid: str, message: str | None, *, every: bool) -> Iterable[Path]:
        """The transcripts that may have a line or a message, by name."""
        if every:
            return self.files
        found = self.by_uuid.get(uuid, []) + (self.by_message.get(message, []) if message is not None else [])
        return sorted(set(found))


@lru_cache(maxsize=64)
def _folder(folder: Path, _modified_ns: int) -> _Folder:
    """Read the transcripts of a folder, once for all of them: it has hundreds. A copy that is made later changes the folder."""
    names = sorted(entry.name for entry in os.scandir(folder) if not entry.is_symlink())
    files = tuple(folder / name for name in names if name.endswith(".jsonl") and not name.startswith("."))
    by_uuid: dict[str, list[Path]] = {}
    by_message: dict[str, list[Path]] = {}
    for file in files:
        head = read_head(file)
        if head is not None:
            by_uuid.setdefault(head.uuid, []).append(file)
        for message in _message_ids(file):
            by_message.setdefault(message, []).append(file)
    return _Folder(files, by_uuid, by_message)


def session_of(line: dict[str, Any]) -> str | None:
    """Return the session that a line names, a subagent's where it is one's; None where it names none."""
    session, agent = line.get("sessionId"), line.get("agentId")
    if not is_identifier(session):
        return None
    is_agents = line.get("isSidechain") is True and is_identifier(agent) and len(f"{session}.agent-{agent}") <= MAX_ID
    return f"{session}.agent-{agent}" if is_agents else str(session)


def question_digest(text: str) -> bytes:
    """Return the digest by which a question is known again."""
    return blake2b(text.encode("utf-8", "replace"), digest_size=16).digest()


def read_head(path: Path) -> Head | None:
    """Read the beginning of a transcript; None if nothing of a conversation is there yet."""
    try:
        return _read_head(path)
    except (LookupError, OSError):
        return None


@lru_cache(maxsize=65_536)
def _read_head(path: Path) -> Head:
    """As `read_head`; LookupError where nothing is there yet. What is there never changes, so it is remembered."""
    begun: datetime | None = None
    with path.open("rb") as stream:
        for line in read_lines(stream):
            if line.number > HEAD_LINES:
                break
            value = decode_line(line)
            at = _told(value) if isinstance(value, dict) else None
            if at is None:
                continue
            begun = at if begun is None else max(begun, at)
            if isinstance(value, dict) and isinstance(value.get("uuid"), str):
                return Head(begun, value["uuid"], at, session_of(value) or "")
    raise LookupError(path)


def _told(line: dict[str, Any]) -> datetime | None:
    """The time of a line, or of the snapshot that it is of."""
    snapshot = line.get("snapshot")
    return moment(line.get("timestamp")) or (moment(snapshot.get("timestamp")) if isinstance(snapshot, dict) else None)


def _uuids(path: Path, first: str = "") -> set[str]:
    """The uuids that the lines of a transcript have, unreadable ones included; none where `first` is not among them."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(first.encode("utf-8", "replace")) < 0:
                return set()
            return {match.group(1).decode("utf-8", "replace") for match in _UUID.finditer(content)}
    except (OSError, ValueError):  # gone, or empty by now
        return set()


def _first_message(path: Path) -> str | None:
    """Return the id of the model's first message within the head of a transcript."""
    with path.open("rb") as stream:
        for line in read_lines(stream):
            if line.number > HEAD_LINES:
                return None
            named = _MESSAGE_ID.search(line.body) if b'"assistant"' in line.body else None
            if named is not None:
                return named.group(1).decode("utf-8", "replace")
    return None


def _message_ids(path: Path) -> frozenset[str]:
    """The ids of the model's messages in a transcript; none where it is gone or empty."""
    try:
        stat = path.stat()
        return _read_message_ids(path, stat.st_size, stat.st_mtime_ns)
    except (OSError, ValueError):
        return frozenset()


@lru_cache(maxsize=4096)
def _read_message_ids(path: Path, _size: int, _modified_ns: int) -> frozenset[str]:
    """As `_message_ids`. Each file is searched once for all the others of its folder."""
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return frozenset(match.group(1).decode("utf-8", "replace") for match in _MESSAGE_ID.finditer(content))


def _questions(path: Path) -> set[bytes]:
    """The digests of the texts in the user's name of a transcript."""
    digests = set()
    with path.open("rb") as stream:
        for line in read_lines(stream):
            value = decode_line(line) if b'"user"' in line.body else None
            message = value.get("message") if isinstance(value, dict) and value.get("type") == "user" else None
            blocks = blocks_of("content", message.get("content")) if isinstance(message, dict) else None
            if isinstance(blocks, list):
                digests.add(question_digest(texts_of(blocks)))
    return digests
