"""Logs of `claude -p --output-format stream-json`, read as transcripts: people keep them instead of the program's own files.

1. A line has a `session_id` and names no parent: the lines of a run follow each other. A run begins with the line `system` of subtype
   `init` and ends with its `result`; what comes after that is another run, of the same session where it was resumed. Each run is a session
   of its own, `<session id>.run-<beginning of the uuid of its first line>`, because the log does not have what the session held before.
2. The prompt is not in the log, unless the program was told to repeat it: `NO_PROMPT` stands in its place. A subagent's lines name the
   call that began it: they are a session of their own, and its prompt is that of the call.
3. `result` ends the answer and says its text, why it stopped, and how many tokens the run used: what its messages did not count is
   added. Pieces of messages (`stream_event`) repeat what the messages say, and are skipped.
4. Old versions write no times. Such a line has the time of the one before it; in a run without any it is the time at which the log was
   last changed, so nothing of that run is read before its result is there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from audit.surrogates import mended
from schemas.errors import InputError
from streams.sources.agent_entries import is_identifier
from streams.sources.claude_code.lines import SOURCE, ClaudeCodeDialect
from streams.sources.lines import Line, Problem, decode_line, read_lines
from streams.sources.openclaw.reader import read_session
from streams.sources.source import Reading, ReadingContext

NO_PROMPT = "[the prompt is not in the log]"
"""The question of a run whose prompt the log does not tell."""
KINDS = frozenset({"system", "assistant", "user", "result", "stream_event"})
"""Kinds of lines by which a log is known."""

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
"""Fields of a log's lines, and what a transcript calls them."""
_RENAMED_COMPACTION = {
    "trigger": "trigger",
    "pre_tokens": "preTokens",
    "post_tokens": "postTokens",
    "duration_ms": "durationMs",
}
_Chains = dict[str | None, "_Chain"]


@dataclass(slots=True)
class _Chain:
    """The lines of one agent in a run, as those of a transcript."""

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
        """Add the question, where none was asked yet."""
        if not self.is_asked:
            self.is_asked = True
            self.add(
                number, f"{uuid}/prompt", {"type": "user", "message": {"role": "user", "content": prompt}, "timestamp": at}
            )


@dataclass(slots=True)
class _Run:
    """One run: its agents by the calls that began them, and the prompts of those calls."""

    name: str
    chains: _Chains = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)
    has_ended: bool = False

    def chain(self, call: str | None, agent: Any) -> _Chain:
        """The agent that a call began, or the run's own."""
        if call not in self.chains:
            session: Json = {"sessionId": self.name}
            if call is not None:
                session |= {"isSidechain": True, "agentId": agent if is_identifier(agent) else call}
            self.chains[call] = _Chain(session)
        return self.chains[call]


def is_stream_line(value: object) -> bool:
    """Tell whether a decoded line is one of such a log."""
    return isinstance(value, dict) and isinstance(value.get("session_id"), str) and value.get("type") in KINDS


def read_stream_log(path: Path, context: ReadingContext) -> Iterator[Reading]:
    """Read one log, run by run; InputError when the file cannot be opened."""
    try:
        written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
        runs, unread = _read_runs(path)
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", hint="Check the path and its permissions.") from error
    is_left = context.ingested_at - written > context.session_gap
    for run in runs:
        for chain in run.chains.values():
            if chain.at is None:
                if not run.has_ended and not is_left:
                    yield Reading(complete=False)
                    continue
                chain.lines = [_with_time(line, written) for line in chain.lines]
            yield _read(chain.lines, path, context, is_left=is_left)
    if unread:
        yield replace(_read(unread, path, context, is_left=is_left), session_ids=[])


def _read(lines: list[Line], path: Path, context: ReadingContext, *, is_left: bool) -> Reading:
    return read_session(lines, context, session_id=path.stem, agent=SOURCE, is_left=is_left, dialect=ClaudeCodeDialect())


def _with_time(line: Line, at: datetime) -> Line:
    body = decode_line(line)
    if isinstance(body, Problem):
        return line
    encoded = msgspec.json.encode({**body, "timestamp": at.isoformat()})
    return Line(line.number, encoded, len(encoded), ended=True)


def _read_runs(path: Path) -> tuple[list[_Run], list[Line]]:
    """The runs of a log in the order of their beginnings, and the lines of none."""
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
            _take(run, line.number, uuid, body)
    return runs, unread


def _take(run: _Run, number: int, uuid: str, body: Json) -> None:
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
    """A notice, in the form that a transcript has for the few that say what the agent did."""
    if line.get("subtype") == "api_retry":
        words = " ".join(str(line[name]) for name in ("error_status", "error") if line.get(name) is not None)
        return {**line, "subtype": "api_error", "error": {"message": words or "the request failed"}}
    metadata = line.get("compact_metadata")
    if isinstance(metadata, dict):
        return {
            **line,
            "compactMetadata": {ours: metadata[name] for name, ours in _RENAMED_COMPACTION.items() if name in metadata},
        }
    return line


def _is_text(message: Any) -> bool:
    """Tell whether a message in the user's role is one of the user: results of tools have another form."""
    content = message.get("content") if isinstance(message, dict) else None
    blocks = content if isinstance(content, list) else []
    return isinstance(content, str) or any(isinstance(block, dict) and block.get("type") == "text" for block in blocks)


def _prompts_of(message: Any) -> dict[str, str]:
    """The prompts of the subagents that a message begins, by the ids of the calls."""
    content = message.get("content") if isinstance(message, dict) else None
    prompts = {}
    for block in content if isinstance(content, list) else []:
        given = block.get("input") if isinstance(block, dict) else None
        if isinstance(given, dict) and isinstance(given.get("prompt"), str) and isinstance(block.get("id"), str):
            prompts[block["id"]] = given["prompt"]
    return prompts
