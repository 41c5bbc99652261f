"""Claude Code's files: transcripts `<root>/projects/<folder>/<session>.jsonl`, those of subagents in `<session>/subagents`, and logs of runs.

`claude --fork-session` starts a new transcript with the lines of another one. They keep their `uuid` but not their session id:

1. A copied line is not marked. It counts in the transcript where it was written first, which is the one of the folder that started earlier.
2. The lines before the conversation tell when a transcript started: a queued prompt, or the file snapshots of all prompts. A transcript is a
   fork if its conversation starts long before that, or with the same line as an earlier transcript.
3. Other programs rewrite a history with new uuids and times, but keep the ids of the model's messages. If an earlier transcript has the first
   message of a transcript, the transcript is a copy of it, up to the first message that differs.

Logs of `claude -p --output-format stream-json` are read like transcripts, because some people keep only these:

4. A line has a `session_id` and no parent; it follows the previous line of its run. A run starts with the `system` line of subtype `init` and
   ends with its `result`. Later lines belong to another run, possibly of the same session. Each run is a separate session,
   `<session id>.run-<start of the uuid of its first line>`, because the log lacks the earlier part of the session.
5. The log lacks the prompt, unless the program was configured to repeat it. `NO_PROMPT` takes its place. The lines of a subagent name the call
   that started it. They are a separate session, with the prompt of that call.
6. `result` ends the answer. It has the text, the stop reason and the token count of the run. Tokens that no message counted are added. Parts of
   messages (`stream_event`) repeat the messages and are skipped.
7. Old versions write no times. A line without a time has the time of the previous line. If a run has no time at all, its lines get the
   modification time of the log, so the run is read only when its result is there.
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

from audit.surrogates import repair_value
from schemas.errors import InputError
from streams.sources.agent_transcripts import find_transcripts, is_identifier, parse_time, read_agent_file
from streams.sources.claude_code_dialect import (
    NOTHING_COPIED,
    SOURCE,
    ClaudeCodeDialect,
    CopiedIds,
    extract_text,
    question_digest,
    session_of,
)
from streams.sources.copies import merge_copies
from streams.sources.lines import Line, Problem, decode_line, may_be_copy, read_lines
from streams.sources.openclaw.entry import read_blocks
from streams.sources.openclaw.reader import read_session
from streams.sources.source import Reading, ReadingContext

_MAX_HEAD_LINES = 64
"""Maximum number of lines that are read to detect the form of a file."""
NO_PROMPT = "[the prompt is not in the log]"
"""The question of a run whose prompt is not in the log."""
LOG_KINDS = frozenset({"system", "assistant", "user", "result", "stream_event"})
"""Kinds of lines that identify a log."""
Json = dict[str, Any]
_SKIPPED_KINDS = frozenset(
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
_UUID_CHARACTERS = 8
_TRANSCRIPT_NAMES = {
    "request_id": "requestId",
    "tool_use_result": "toolUseResult",
    "is_api_error_message": "isApiErrorMessage",
    "is_meta": "isMeta",
    "isSynthetic": "isMeta",
    "is_compact_summary": "isCompactSummary",
}
"""Field names in a log, with their names in a transcript."""
_COMPACTION_NAMES = {
    "trigger": "trigger",
    "pre_tokens": "preTokens",
    "post_tokens": "postTokens",
    "duration_ms": "durationMs",
}
MAX_HEAD_LINES = 4096
"""Maximum number of lines before the conversation of a transcript. A fork has one such line for each earlier prompt."""
FORK_MARGIN = timedelta(seconds=5)
"""Time by which a transcript may start after its first line without being a fork."""
_UUID = re.compile(rb'"uuid"\s*:\s*"([^"\\]{1,256})"')
_MESSAGE_ID = re.compile(rb'"id"\s*:\s*"(msg_[^"\\]{1,256})"')
"""Message ids assigned by Anthropic. Ids assigned by gateways may repeat in every session."""
_SIDECHAIN = re.compile(rb'"isSidechain"\s*:\s*true')


def find_claude_code(path: Path) -> list[Path]:
    """Return the transcripts at a path, sorted: the file itself, or every transcript `*.jsonl` below a folder, including backups.

    A file is a transcript if it is in a folder of `projects` or in `subagents`, or if its first lines have session ids. Logs of
    `claude -p --output-format stream-json` are included. Hidden files and symbolic links are left out. Raises InputError if the path does
    not exist.
    """
    if path.is_file():
        return [path]
    files = (file for file in find_transcripts(path, "*.jsonl*") if may_be_copy(file.name))
    return [file for file in files if (file.suffix == ".jsonl" and _is_in_projects(file)) or _detect_form(file)]


def _is_in_projects(file: Path) -> bool:
    folder = file.resolve().parent
    return folder.parent.name == "projects" or folder.name == "subagents"


def _detect_form(file: Path) -> _FileForm | None:
    """Return the form of a file, detected from its first lines; None if it has neither form or cannot be read."""
    try:
        with file.open("rb") as stream:
            for line in read_lines(stream):
                if line.number > _MAX_HEAD_LINES:
                    return None
                value = decode_line(line)
                if isinstance(value, dict) and isinstance(value.get("sessionId"), str) and isinstance(value.get("uuid"), str):
                    return _FileForm.TRANSCRIPT
                if _is_stream_line(value):
                    return _FileForm.LOG
    except OSError:
        return None
    return None


class _FileForm(Enum):
    TRANSCRIPT = auto()
    LOG = auto()


def _is_stream_line(value: object) -> bool:
    """Return whether a decoded line belongs to a stream log."""
    return isinstance(value, dict) and isinstance(value.get("session_id"), str) and value.get("type") in LOG_KINDS


def read_claude_code(path: Path, context: ReadingContext) -> Reading:
    """Read one transcript. Raises InputError if the file cannot be opened."""
    try:
        copied = find_copied_ids(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", hint="Check the path and its permissions.") from error
    return read_agent_file(
        path,
        context,
        ClaudeCodeDialect(copied),
        session_id=path.stem,
        agent=SOURCE,
        split_lines=lambda stream: merge_copies(path, read_lines(stream), context.copies, ClaudeCodeDialect.id_field),
    )


def session_of_claude_code(path: Path) -> str | None:
    """Return the session of a transcript, or the first run of a log; None if there is neither."""
    head = read_head(path)
    if head is not None and head.session:
        return head.session
    try:
        return _read_first_run(path, path.stat().st_ino)
    except (LookupError, OSError):
        return None


@lru_cache(maxsize=65_536)
def _read_first_run(path: Path, _inode: int) -> str:
    """Return the first run of a log. Raises LookupError if the file is not a log. Cached because the start of a file never changes."""
    with path.open("rb") as stream:
        for line in read_lines(stream):
            value = decode_line(line)
            if line.number > _MAX_HEAD_LINES or (isinstance(value, dict) and "sessionId" in value):
                break
            if isinstance(value, dict) and _is_stream_line(value):
                return f"log {value['session_id']} {value.get('uuid')}"
    raise LookupError(path)


def is_stream_log(path: Path) -> bool:
    """Return whether the first lines of a file are those of a log of `claude -p --output-format stream-json`."""
    return _detect_form(path) is _FileForm.LOG


def read_stream_log(path: Path, context: ReadingContext) -> Iterator[Reading]:
    """Yield a reading for each agent of each run in a log. Raises InputError if the file cannot be opened."""
    try:
        modified_at = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        runs, stray_lines = _read_runs(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", hint="Check the path and its permissions.") from error
    is_abandoned = context.ingested_at - modified_at > context.session_gap
    for run in runs:
        for agent_lines in run.lines_by_call.values():
            if agent_lines.last_time is None:
                if not run.has_ended and not is_abandoned:
                    yield Reading(complete=False)
                    continue
                agent_lines.lines = [_set_time(line, modified_at) for line in agent_lines.lines]
            yield _read_agent_lines(agent_lines.lines, path, context, is_abandoned=is_abandoned)
    if stray_lines:
        yield replace(_read_agent_lines(stray_lines, path, context, is_abandoned=is_abandoned), session_ids=[])


def _read_runs(path: Path) -> tuple[list[_Run], list[Line]]:
    """Return the runs of a log by start, and the lines that belong to no run."""
    runs: list[_Run] = []
    stray_lines: list[Line] = []
    current_runs: dict[str, _Run] = {}
    with path.open("rb") as stream:
        for line in read_lines(stream):
            body = decode_line(line)
            if isinstance(body, Problem) or not is_identifier(body.get("session_id")):
                if isinstance(body, Problem) or body.get("type") not in _SKIPPED_KINDS:
                    stray_lines.append(line)
                continue
            session = str(body["session_id"])
            uuid = str(body["uuid"]) if is_identifier(body.get("uuid")) else f"line-{line.number}"
            run = current_runs.get(session)
            if run is None or (run.has_ended and body.get("type") != "result"):
                run = _Run(f"{session}.run-{uuid[:_UUID_CHARACTERS]}")
                current_runs[session] = run
                runs.append(run)
            _add_line(run, line.number, uuid, body)
    return runs, stray_lines


@dataclass(slots=True)
class _Run:
    """One run: the lines of its agents by the calls that started them, and the prompts of those calls."""

    name: str
    lines_by_call: dict[str | None, _AgentLines] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)
    has_ended: bool = False

    def agent_lines(self, call: str | None, agent: Any) -> _AgentLines:
        """Return the lines of the agent that a call started, or of the run's main agent if there is no call."""
        if call not in self.lines_by_call:
            session_fields: Json = {"sessionId": self.name}
            if call is not None:
                session_fields |= {"isSidechain": True, "agentId": agent if is_identifier(agent) else call}
            self.lines_by_call[call] = _AgentLines(session_fields)
        return self.lines_by_call[call]


@dataclass(slots=True)
class _AgentLines:
    """The lines of one agent in a run, converted to transcript lines. `session_fields` are added to each of them."""

    session_fields: Json
    lines: list[Line] = field(default_factory=list)
    last_uuid: str | None = None
    last_time: Any = None
    has_question: bool = False

    def add(self, number: int, uuid: str, body: Json) -> None:
        """Add a line that follows the last one."""
        self.last_time = body.get("timestamp") or self.last_time
        position = {"uuid": uuid, "parentUuid": self.last_uuid, "timestamp": self.last_time}
        encoded = msgspec.json.encode(repair_value({**body, **self.session_fields, **position}))
        self.lines.append(Line(number, encoded, len(encoded), ended=True))
        self.last_uuid = uuid

    def add_question(self, number: int, uuid: str, prompt: str, time: Any) -> None:
        """Add the question, unless the log has one."""
        if not self.has_question:
            self.has_question = True
            question = {"type": "user", "message": {"role": "user", "content": prompt}, "timestamp": time}
            self.add(number, f"{uuid}/prompt", question)


def _add_line(run: _Run, number: int, uuid: str, body: Json) -> None:
    """Add one line to its run."""
    kind = body.get("type")
    if kind in _SKIPPED_KINDS:
        return
    call = body.get("parent_tool_use_id")
    call = call if isinstance(call, str) else None
    agent_lines = run.agent_lines(call, body.get("agent_id"))
    line = {_TRANSCRIPT_NAMES.get(name, name): value for name, value in body.items()}
    if kind == "system":
        line = _convert_system_line(line)
    if kind == "user" and _has_text(body.get("message")):
        agent_lines.has_question = True
    elif kind in ("assistant", "result"):
        prompt = NO_PROMPT if call is None else run.prompts.get(call, NO_PROMPT)
        agent_lines.add_question(number, uuid, prompt, body.get("timestamp"))
        run.prompts |= _read_prompts(body.get("message"))
    agent_lines.add(number, uuid, line)
    run.has_ended = run.has_ended or kind == "result"


def _convert_system_line(line: Json) -> Json:
    """Return a system line in the form of a transcript, if it records what the agent did; any other line unchanged."""
    if line.get("subtype") == "api_retry":
        reasons = " ".join(str(line[name]) for name in ("error_status", "error") if line.get(name) is not None)
        return {**line, "subtype": "api_error", "error": {"message": reasons or "the request failed"}}
    metadata = line.get("compact_metadata")
    if isinstance(metadata, dict):
        renamed = {new_name: metadata[name] for name, new_name in _COMPACTION_NAMES.items() if name in metadata}
        return {**line, "compactMetadata": renamed}
    return line


def _has_text(message: Any) -> bool:
    """Return whether a message in the user's role has text. A message without text has only tool results."""
    content = message.get("content") if isinstance(message, dict) else None
    blocks = content if isinstance(content, list) else []
    return isinstance(content, str) or any(isinstance(block, dict) and block.get("type") == "text" for block in blocks)


def _read_prompts(message: Any) -> dict[str, str]:
    """Return the prompts of the subagents that a message starts, by call id."""
    content = message.get("content") if isinstance(message, dict) else None
    prompts = {}
    for block in content if isinstance(content, list) else []:
        arguments = block.get("input") if isinstance(block, dict) else None
        if isinstance(arguments, dict) and isinstance(arguments.get("prompt"), str) and isinstance(block.get("id"), str):
            prompts[block["id"]] = arguments["prompt"]
    return prompts


def _set_time(line: Line, at: datetime) -> Line:
    body = decode_line(line)
    if isinstance(body, Problem):
        return line
    encoded = msgspec.json.encode({**body, "timestamp": at.isoformat()})
    return Line(line.number, encoded, len(encoded), ended=True)


def _read_agent_lines(lines: list[Line], path: Path, context: ReadingContext, *, is_abandoned: bool) -> Reading:
    return read_session(
        lines, context, session_id=path.stem, agent=SOURCE, is_abandoned=is_abandoned, dialect=ClaudeCodeDialect()
    )


class Head(NamedTuple):
    """The start of a transcript: its start time, and the uuid, time and session of the first line of its conversation."""

    started_at: datetime
    uuid: str
    at: datetime
    session: str


def find_copied_ids(path: Path) -> CopiedIds:
    """Return the ids of what a transcript copied from earlier ones in its folder; none if it is not a fork."""
    head = read_head(path)
    if head is None:
        return NOTHING_COPIED
    uuids: set[str] = set()
    messages: set[str] = set()
    questions: set[bytes] = set()
    first_message = _read_first_message_id(path)
    folder = _index_folder(path.parent, path.parent.stat().st_mtime_ns)
    starts_late = head.started_at - head.at > FORK_MARGIN
    candidates = folder.files if starts_late else folder.find_candidates(head.uuid, first_message)
    for other in candidates:
        other_head = None if other == path else read_head(other)
        # Other files of the same session are merged with it (`copies`).
        if other_head is None or other_head.session == head.session:
            continue
        if (other_head.started_at, other.name) >= (head.started_at, path.name):
            continue
        if other_head.uuid == head.uuid or (starts_late and other_head.started_at - FORK_MARGIN <= head.at):
            uuids |= _read_uuids(other, head.uuid)
        is_older = head.started_at - other_head.started_at > FORK_MARGIN
        if is_older and first_message is not None and first_message in _message_ids(other):
            messages |= _message_ids(other)
            questions |= _read_question_digests(other)
    return CopiedIds(frozenset(uuids), frozenset(messages), frozenset(questions), _read_subagent_ids(path))


def _read_first_message_id(path: Path) -> str | None:
    """Return the id of the model's first message; None if the first MAX_HEAD_LINES lines have none."""
    with path.open("rb") as stream:
        for line in read_lines(stream):
            if line.number > MAX_HEAD_LINES:
                return None
            match = _MESSAGE_ID.search(line.body) if b'"assistant"' in line.body else None
            if match is not None:
                return match.group(1).decode("utf-8", "replace")
    return None


@lru_cache(maxsize=64)
def _index_folder(folder: Path, _modified_ns: int) -> _FolderIndex:
    """Return the index of a folder's transcripts.

    Cached because each of its transcripts, perhaps hundreds, needs the index. A new file changes the modification time of the folder.
    """
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
    return _FolderIndex(files, by_uuid, by_message)


class _FolderIndex(NamedTuple):
    """The transcripts of a folder: all files, the files by the uuid of their first line, and the files by message id."""

    files: tuple[Path, ...]
    by_uuid: Mapping[str, list[Path]]
    by_message: Mapping[str, list[Path]]

    def find_candidates(self, uuid: str, message_id: str | None) -> Iterable[Path]:
        """Return the transcripts that start with this line or have this message, by name."""
        files = set(self.by_uuid.get(uuid, []))
        if message_id is not None:
            files.update(self.by_message.get(message_id, []))
        return sorted(files)


def _message_ids(path: Path) -> frozenset[str]:
    """Return the ids of the model's messages in a transcript; none if the file is missing or empty."""
    try:
        stat = path.stat()
        return _read_message_ids(path, stat.st_size, stat.st_mtime_ns)
    except (OSError, ValueError):
        return frozenset()


@lru_cache(maxsize=4096)
def _read_message_ids(path: Path, _size: int, _modified_ns: int) -> frozenset[str]:
    """Return the message ids. Cached because each transcript of a folder is compared with all others."""
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
        return frozenset(match.group(1).decode("utf-8", "replace") for match in _MESSAGE_ID.finditer(content))


def _read_uuids(path: Path, first: str = "") -> set[str]:
    """Return the uuids of a transcript's lines, including unreadable ones; none if `first` is not among them."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
            if content.find(first.encode("utf-8", "replace")) < 0:
                return set()
            return {match.group(1).decode("utf-8", "replace") for match in _UUID.finditer(content)}
    except (OSError, ValueError):  # the file was deleted or emptied meanwhile
        return set()


def _read_question_digests(path: Path) -> set[bytes]:
    """Return the digests of the user messages in a transcript."""
    digests = set()
    with path.open("rb") as stream:
        for line in read_lines(stream):
            value = decode_line(line) if b'"user"' in line.body else None
            message = value.get("message") if isinstance(value, dict) and value.get("type") == "user" else None
            blocks = read_blocks("content", message.get("content")) if isinstance(message, dict) else None
            if isinstance(blocks, list):
                digests.add(question_digest(extract_text(blocks)))
    return digests


def _read_subagent_ids(path: Path) -> frozenset[str]:
    """Return the uuids and message ids in the separate transcripts of a session's subagents.

    A transcript without sidechain lines gives none: it repeats nothing of its subagents, and there may be many.
    """
    if _SIDECHAIN.search(path.read_bytes()) is None:
        return frozenset()
    ids: set[str] = set()
    for file in sorted((path.parent / path.stem / "subagents").rglob("*.jsonl")):
        ids |= _read_uuids(file) | _message_ids(file)
    return frozenset(ids)


def read_head(path: Path) -> Head | None:
    """Return the start of a transcript; None if its conversation has not started yet."""
    try:
        return _read_head(path)
    except (LookupError, OSError):
        return None


@lru_cache(maxsize=65_536)
def _read_head(path: Path) -> Head:
    """Return the start of a transcript. Raises LookupError if there is none yet. Cached because the start of a file never changes."""
    started_at: datetime | None = None
    with path.open("rb") as stream:
        for line in read_lines(stream):
            if line.number > MAX_HEAD_LINES:
                break
            value = decode_line(line)
            at = _read_line_time(value) if isinstance(value, dict) else None
            if at is None:
                continue
            started_at = at if started_at is None else max(started_at, at)
            if isinstance(value, dict) and isinstance(value.get("uuid"), str):
                return Head(started_at, value["uuid"], at, session_of(value) or "")
    raise LookupError(path)


def _read_line_time(line: Json) -> datetime | None:
    """Return the time of a line, or of its file snapshot."""
    time = parse_time(line.get("timestamp"))
    snapshot = line.get("snapshot")
    if time is None and isinstance(snapshot, dict):
        return parse_time(snapshot.get("timestamp"))
    return time
