"""Claude Code transcripts: `<root>/projects/<folder>/<session>.jsonl`, those of subagents below `<session>/subagents`, and logs of runs.

`claude --fork-session` begins a new transcript with the lines of another, their `uuid` kept, their session id not:

1. A copied line is not marked. It counts where it was written first: in the transcript of the same folder that was begun earlier.
2. The lines before the conversation tell when a transcript was begun: a queued prompt, or file snapshots of all prompts. A transcript
   whose conversation starts long before that is a fork, and so is one that starts with the same line as an earlier one.
3. Other programs rewrite a history with new uuids and times but keep the ids of the model's messages. A transcript whose first message
   is also in an earlier transcript is a copy of it, up to the first message that differs.

Logs of `claude -p --output-format stream-json` are read as transcripts, because some people keep only these:

4. A line has a `session_id` and no parent: the lines of a run follow each other. A run starts with the `system` line of subtype `init` and
   ends with its `result`. Later lines are another run, possibly of the same session. Each run is a session of its own,
   `<session id>.run-<start of the uuid of its first line>`, because the log lacks the earlier part of the session.
5. The log lacks the prompt unless the program was configured to repeat it; `NO_PROMPT` replaces it. A subagent's lines name the call that
   started it: they are a separate session, with the call's prompt.
6. `result` ends the answer. It has the text, the stop reason and the token count of the run; tokens that no message counted are added.
   Parts of messages (`stream_event`) repeat the messages and are skipped.
7. Old versions write no times. Such a line has the time of the previous line. In a run without any time, all lines have the time at which
   the log was last changed, so the run is read only once its result is there.
"""

from __future__ import annotations

import mmap
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from audit.surrogates import mended
from schemas.errors import InputError
from streams.sources.agent_transcripts import find_transcripts, is_identifier, parse_time, read_agent_file
from streams.sources.claude_code_dialect import (
    NOTHING_COPIED,
    SOURCE,
    ClaudeCodeDialect,
    Copied,
    question_digest,
    session_of,
    texts_of,
)
from streams.sources.copies import merge_copies
from streams.sources.lines import Line, Problem, decode_line, may_be_copy, read_lines
from streams.sources.openclaw.entry import read_blocks
from streams.sources.openclaw.reader import read_session
from streams.sources.source import Reading, ReadingContext

_LOOKED_AT = 64
"""Lines that are checked to tell whether a file is a transcript."""
NO_PROMPT = "[the prompt is not in the log]"
"""The question of a run whose prompt is not in the log."""
KINDS = frozenset({"system", "assistant", "user", "result", "stream_event"})
"""Kinds of lines that identify a log."""
Json = dict[str, Any]
_SKIPPED = frozenset(
    {
        "auth_status",
        "control_cancel_request",
        "control_request",
        "control_response",
        "keep_alive",
        "prompt_suggestion",
        "rate_limit_event",
        "stream_event",
        "tool_progress",
        "tool_use_summary",
    }
)
_UUID_SHOWN = 8
_RENAMED = {
    "request_id": "requestId",
    "tool_use_result": "toolUseResult",
    "is_api_error_message": "isApiErrorMessage",
    "is_meta": "isMeta",
    "isSynthetic": "isMeta",
    "is_compact_summary": "isCompactSummary",
}
"""Field names in a log, with their names in a transcript."""
_RENAMED_COMPACTION = {
    "trigger": "trigger",
    "pre_tokens": "preTokens",
    "post_tokens": "postTokens",
    "duration_ms": "durationMs",
}
_Chains = dict[str | None, "_Chain"]
HEAD_LINES = 4096
"""Lines within which the conversation of a transcript starts. A fork has one line for each earlier prompt."""
MARGIN = timedelta(seconds=5)
"""Tolerance by which a transcript may seem younger than its first line without being a fork."""
_UUID = re.compile(rb'"uuid"\s*:\s*"([^"\\]{1,256})"')
_MESSAGE_ID = re.compile(rb'"id"\s*:\s*"(msg_[^"\\]{1,256})"')
"""Message ids assigned by Anthropic. Ids made up by gateways may repeat in every session."""
_SIDECHAIN = re.compile(rb'"isSidechain"\s*:\s*true')


def find_claude_code(path: Path) -> list[Path]:
    """Return the transcripts at a path, sorted: the file itself, or every transcript `*.jsonl` below a folder, backups included.

    A file is a transcript if it lies directly in a folder of `projects` or in `subagents`, or if its first lines have session ids. Logs of
    `claude -p --output-format stream-json` are included. Hidden files and symbolic links are left out. Raises InputError if the path does
    not exist.
    """
    if path.is_file():
        return [path]
    files = (file for file in find_transcripts(path, "*.jsonl*") if may_be_copy(file.name))
    return [file for file in files if (file.suffix == ".jsonl" and _is_in_place(file)) or _form_of(file)]


def _is_in_place(file: Path) -> bool:
    folder = file.resolve().parent
    return folder.parent.name == "projects" or folder.name == "subagents"


def _form_of(file: Path) -> _Form | None:
    """Return the form of a file by its first lines; None for other files, and for a file that cannot be read."""
    try:
        with file.open("rb") as stream:
            for line in read_lines(stream):
                if line.number > _LOOKED_AT:
                    return None
                value = decode_line(line)
                if isinstance(value, dict) and isinstance(value.get("sessionId"), str) and isinstance(value.get("uuid"), str):
                    return _Form.TRANSCRIPT
                if _is_stream_line(value):
                    return _Form.LOG
    except OSError:
        return None
    return None


class _Form(Enum):
    TRANSCRIPT = auto()
    LOG = auto()


def _is_stream_line(value: object) -> bool:
    """Return whether a decoded line belongs to a stream log."""
    return isinstance(value, dict) and isinstance(value.get("session_id"), str) and value.get("type") in KINDS


def read_claude_code(path: Path, context: ReadingContext) -> Reading:
    """Read one transcript. Raises InputError if the file cannot be opened."""
    try:
        copied = read_copied(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", hint="Check the path and its permissions.") from error
    return read_agent_file(
        path,
        context,
        ClaudeCodeDialect(copied),
        session_id=path.stem,
        agent=SOURCE,
        lines_of=lambda stream: merge_copies(path, read_lines(stream), context.copies, ClaudeCodeDialect.id_field),
    )


def session_of_claude_code(path: Path) -> str | None:
    """Return the session of a transcript, or the first run of a log; None if there is neither."""
    head = read_head(path)
    if head is not None and head.session:
        return head.session
    try:
        return _first_run(path, path.stat().st_ino)
    except (LookupError, OSError):
        return None


@lru_cache(maxsize=65_536)
def _first_run(path: Path, _inode: int) -> str:
    """Return the first run of a log. Raises LookupError if the file is not a log. Cached because the start of a file never changes."""
    with path.open("rb") as stream:
        for line in read_lines(stream):
            value = decode_line(line)
            if line.number > _LOOKED_AT or (isinstance(value, dict) and "sessionId" in value):
                break
            if isinstance(value, dict) and _is_stream_line(value):
                return f"log {value['session_id']} {value.get('uuid')}"
    raise LookupError(path)


def is_stream_log(path: Path) -> bool:
    """Return whether a file is a log of `claude -p --output-format stream-json`, by its first lines."""
    return _form_of(path) is _Form.LOG


def read_stream_log(path: Path, context: ReadingContext) -> Iterator[Reading]:
    """Read one log, run by run. Raises InputError if the file cannot be opened."""
    try:
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        runs, unread = _read_runs(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", hint="Check the path and its permissions.") from error
    is_abandoned = context.ingested_at - written > context.session_gap
    for run in runs:
        for chain in run.chains.values():
            if chain.at is None:
                if not run.has_ended and not is_abandoned:
                    yield Reading(complete=False)
                    continue
                chain.lines = [_with_time(line, written) for line in chain.lines]
            yield _read_chain(chain.lines, path, context, is_abandoned=is_abandoned)
    if unread:
        yield replace(_read_chain(unread, path, context, is_abandoned=is_abandoned), session_ids=[])


def _read_runs(path: Path) -> tuple[list[_Run], list[Line]]:
    """Return the runs of a log by start, and the lines that belong to no run."""
    runs: list[_Run] = []
    unread: list[Line] = []
    current: dict[str, _Run] = {}
    with path.open("rb") as stream:
        for line in read_lines(stream):
            body = decode_line(line)
            if isinstance(body, Problem) or not is_identifier(body.get("session_id")):
                if isinstance(body, Problem) or body.get("type") not in _SKIPPED:
                    unread.append(line)
                continue
            session = str(body["session_id"])
            uuid = str(body["uuid"]) if is_identifier(body.get("uuid")) else f"line-{line.number}"
            run = current.get(session)
            if run is None or (run.has_ended and body.get("type") != "result"):
                run = current[session] = _Run(f"{session}.run-{uuid[:_UUID_SHOWN]}")
                runs.append(run)
            _add_line(run, line.number, uuid, body)
    return runs, unread


@dataclass(slots=True)
class _Run:
    """One run: its agents by the calls that started them, and the prompts of those calls."""

    name: str
    chains: _Chains = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)
    has_ended: bool = False

    def chain(self, call: str | None, agent: Any) -> _Chain:
        """Return the lines of the agent that a call started, or of the run's own agent."""
        if call not in self.chains:
            session: Json = {"sessionId": self.name}
            if call is not None:
                session |= {"isSidechain": True, "agentId": agent if is_identifier(agent) else call}
            self.chains[call] = _Chain(session)
        return self.chains[call]


@dataclass(slots=True)
class _Chain:
    """The lines of one agent in a run, converted to transcript lines."""

    session: Json
    lines: list[Line] = field(default_factory=list)
    last: str | None = None
    at: Any = None
    is_asked: bool = False

    def add(self, number: int, uuid: str, body: Json) -> None:
        """Add a line that follows the last one."""
        self.at = body.get("timestamp") or self.at
        line = {**body, **self.session, "uuid": uuid, "parentUuid": self.last, "timestamp": self.at}
        encoded = msgspec.json.encode(mended(line))
        self.lines.append(Line(number, encoded, len(encoded), ended=True))
        self.last = uuid

    def ask(self, number: int, uuid: str, prompt: str, at: Any) -> None:
        """Add the question, unless there is one already."""
        if not self.is_asked:
            self.is_asked = True
            self.add(
                number, f"{uuid}/prompt", {"type": "user", "message": {"role": "user", "content": prompt}, "timestamp": at}
            )


def _add_line(run: _Run, number: int, uuid: str, body: Json) -> None:
    """Add one line to its run."""
    kind, call, at = body.get("type"), body.get("parent_tool_use_id"), body.get("timestamp")
    if kind in _SKIPPED:
        return
    call = call if isinstance(call, str) else None
    chain = run.chain(call, body.get("agent_id"))
    line = {_RENAMED.get(name, name): value for name, value in body.items()}
    if kind == "system":
        line = _system_line(line)
    if kind == "user" and _is_text(body.get("message")):
        chain.is_asked = True
    elif kind in ("assistant", "result"):
        chain.ask(number, uuid, NO_PROMPT if call is None else run.prompts.get(call, NO_PROMPT), at)
        run.prompts |= _prompts_of(body.get("message"))
    chain.add(number, uuid, line)
    run.has_ended |= kind == "result"


def _system_line(line: Json) -> Json:
    """Return a system line in a transcript's form, if it records what the agent did; any other unchanged."""
    if line.get("subtype") == "api_retry":
        reasons = " ".join(str(line[name]) for name in ("error_status", "error") if line.get(name) is not None)
        return {**line, "subtype": "api_error", "error": {"message": reasons or "the request failed"}}
    metadata = line.get("compact_metadata")
    if isinstance(metadata, dict):
        return {
            **line,
            "compactMetadata": {ours: metadata[name] for name, ours in _RENAMED_COMPACTION.items() if name in metadata},
        }
    return line


def _is_text(message: Any) -> bool:
    """Return whether a message in the user's role has text, so that it is not only a tool result."""
    content = message.get("content") if isinstance(message, dict) else None
    blocks = content if isinstance(content, list) else []
    return isinstance(content, str) or any(isinstance(block, dict) and block.get("type") == "text" for block in blocks)


def _prompts_of(message: Any) -> dict[str, str]:
    """Return the prompts of the subagents that a message starts, by call id."""
    content = message.get("content") if isinstance(message, dict) else None
    prompts = {}
    for block in content if isinstance(content, list) else []:
        arguments = block.get("input") if isinstance(block, dict) else None
        if isinstance(arguments, dict) and isinstance(arguments.get("prompt"), str) and isinstance(block.get("id"), str):
            prompts[block["id"]] = arguments["prompt"]
    return prompts


def _with_time(line: Line, at: datetime) -> Line:
    body = decode_line(line)
    if isinstance(body, Problem):
        return line
    encoded = msgspec.json.encode({**body, "timestamp": at.isoformat()})
    return Line(line.number, encoded, len(encoded), ended=True)


def _read_chain(lines: list[Line], path: Path, context: ReadingContext, *, is_abandoned: bool) -> Reading:
    return read_session(
        lines, context, session_id=path.stem, agent=SOURCE, is_abandoned=is_abandoned, dialect=ClaudeCodeDialect()
    )


class Head(NamedTuple):
    """The start of a transcript: when it was begun, and uuid, time and session of the first line of its conversation."""

    begun: datetime
    uuid: str
    at: datetime
    session: str


def read_copied(path: Path) -> Copied:
    """Return what a transcript copied from earlier ones in its folder; nothing if it is not a fork."""
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
        # Other files of the same session are merged with it (`copies`).
        if older is None or older.session == head.session or (older.begun, other.name) >= (head.begun, path.name):
            continue
        if older.uuid == head.uuid or (is_late and older.begun - MARGIN <= head.at):
            uuids |= _uuids(other, head.uuid)
        if first_message is not None and head.begun - older.begun > MARGIN and first_message in _message_ids(other):
            messages |= _message_ids(other)
            questions |= _questions(other)
    return Copied(frozenset(uuids), frozenset(messages), frozenset(questions), _ids_of_subagents(path))


def _first_message(path: Path) -> str | None:
    """Return the id of the model's first message in the first HEAD_LINES lines."""
    with path.open("rb") as stream:
        for line in read_lines(stream):
            if line.number > HEAD_LINES:
                return None
            named = _MESSAGE_ID.search(line.body) if b'"assistant"' in line.body else None
            if named is not None:
                return named.group(1).decode("utf-8", "replace")
    return None


@lru_cache(maxsize=64)
def _folder(folder: Path, _modified_ns: int) -> _Folder:
    """Index the transcripts of a folder, once for all of them: there may be hundreds. A new copy changes the folder's time."""
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


class _Folder(NamedTuple):
    """The transcripts of a folder: all of them, by the uuid of their first line, and by message id."""

    files: tuple[Path, ...]
    by_uuid: Mapping[str, list[Path]]
    by_message: Mapping[str, list[Path]]

    def candidates(self, uuid: str, message: str | None, *, every: bool) -> Iterable[Path]:
        """Return the transcripts that may have this line or message, by name."""
        if every:
            return self.files
        files = self.by_uuid.get(uuid, []) + (self.by_message.get(message, []) if message is not None else [])
        return sorted(set(files))


def _message_ids(path: Path) -> frozenset[str]:
    """Return the ids of the model's messages in a transcript; none if it is missing or empty."""
    try:
        stat = path.stat()
        return _read_message_ids(path, stat.st_size, stat.st_mtime_ns)
    except (OSError, ValueError):
        return frozenset()


@lru_cache(maxsize=4096)
def _read_message_ids(path: Path, _size: int, _modified_ns: int) -> frozenset[str]:
    """Return the message ids. Cached because every transcript of a folder is compared with all others."""
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return frozenset(match.group(1).decode("utf-8", "replace") for match in _MESSAGE_ID.finditer(content))


def _uuids(path: Path, first: str = "") -> set[str]:
    """Return the uuids of the lines of a transcript, unreadable ones included; none if `first` is not among them."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(first.encode("utf-8", "replace")) < 0:
                return set()
            return {match.group(1).decode("utf-8", "replace") for match in _UUID.finditer(content)}
    except (OSError, ValueError):  # gone, or empty by now
        return set()


def _questions(path: Path) -> set[bytes]:
    """Return the digests of the user messages in a transcript."""
    digests = set()
    with path.open("rb") as stream:
        for line in read_lines(stream):
            value = decode_line(line) if b'"user"' in line.body else None
            message = value.get("message") if isinstance(value, dict) and value.get("type") == "user" else None
            blocks = read_blocks("content", message.get("content")) if isinstance(message, dict) else None
            if isinstance(blocks, list):
                digests.add(question_digest(texts_of(blocks)))
    return digests


def _ids_of_subagents(path: Path) -> frozenset[str]:
    """Return the uuids and message ids in the separate transcripts of a session's subagents.

    Empty if the transcript has no sidechain line: current versions write none, and a session may have many subagents.
    """
    if _SIDECHAIN.search(path.read_bytes()) is None:
        return frozenset()
    ids: set[str] = set()
    for file in sorted((path.parent / path.stem / "subagents").rglob("*.jsonl")):
        ids |= _uuids(file) | _message_ids(file)
    return frozenset(ids)


def read_head(path: Path) -> Head | None:
    """Read the start of a transcript; None if its conversation has not started yet."""
    try:
        return _read_head(path)
    except (LookupError, OSError):
        return None


@lru_cache(maxsize=65_536)
def _read_head(path: Path) -> Head:
    """Read the start. Raises LookupError if there is none yet. Cached because the start of a file never changes."""
    begun: datetime | None = None
    with path.open("rb") as stream:
        for line in read_lines(stream):
            if line.number > HEAD_LINES:
                break
            value = decode_line(line)
            at = _time_of(value) if isinstance(value, dict) else None
            if at is None:
                continue
            begun = at if begun is None else max(begun, at)
            if isinstance(value, dict) and isinstance(value.get("uuid"), str):
                return Head(begun, value["uuid"], at, session_of(value) or "")
    raise LookupError(path)


def _time_of(line: dict[str, Any]) -> datetime | None:
    """Return the time of a line, or of the file snapshot in it."""
    time = parse_time(line.get("timestamp"))
    snapshot = line.get("snapshot")
    if time is None and isinstance(snapshot, dict):
        return parse_time(snapshot.get("timestamp"))
    return time
