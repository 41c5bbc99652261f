"""OpenClaw's trajectory: the second account of a session's runs, read for what the transcript does not say.

A run is what the gateway does for one message. Its trajectory has, in this order and possibly several times: `session.started`
(an attempt begins), `trace.metadata`, `tool.call` and `tool.result`, `model.completed` (the attempt is over), and once, at the
end, `session.ended`. Prompts and contexts, the largest part by far, are never loaded.

1. It is rows of `trajectory_runtime_events` in a database, else lines of `<session>.trajectory.jsonl`. The objects are the same.
2. An attempt is failed when it completed with the stop reason `error`; a run is aborted or timed out when its end says so, or,
   where that is missing, its last completion.
3. A run is settled a minute after its end: until then the transcript may still be written. A run without an end is settled when
   another one began after it, or when the session gap has gone by.
4. OpenClaw shortens what it records, and leaves out the oldest events of a run that has too many: nothing is concluded from an
   event that is not there.

What the transcript lacks becomes events that say `told_by: trajectory`. The messages of a run carry its run id (since 2026.9), else they are
found by their times.

5. Calls and results of tools whose id the transcript does not have. A call inside a wrapped one, whose id holds that of the
   wrapper (`tool_search_code:<id>:<tool>:<n>`), is the call that the transcript has under the wrapper's id.
6. Failed attempts of which the transcript has no failed message: an `error_event`, and a `retry_event` where another attempt
   followed. A run that was aborted or timed out: an `error_event` of that action, unless the transcript ends in a failure.
7. Usage: what the run used beyond the messages that the transcript has of it.
8. The fill of the context where both figures are there, from SATURATION percent on. The window is that of the session's entry,
   so it counts for runs of the entry's provider and model alone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

from audit.diagnosis.duplicate_rules import TRAJECTORY
from audit.times import parse_timestamp
from schemas.bounds import MAX_ID, NOT_UNICODE, has_surrogates
from streams.sources.lines import Line, Problem, decode_line, is_torn, line_fault
from streams.sources.openclaw.entry import Usage, counts_of
from streams.sources.openclaw.events import WRAPPER, call_event, output_events
from streams.sources.openclaw.text import text_of
from streams.sources.source import LineFault

SETTLED = timedelta(minutes=1)
"""The time after the end of a run in which its transcript may still grow."""
SKIPPED = ("context.compiled", "prompt.submitted", "trace.artifacts")
"""Kinds of lines that repeat prompts, contexts and answers: nothing in them is read."""
METADATA = "trace.metadata"
"""The kind of line that names the skills of a run, among much else."""
MAX_RUNS = 100_000
"""Runs of a session that are reported."""
_TIMEOUTS = ("timedOut", "idleTimedOut", "timedOutDuringCompaction", "timedOutDuringToolExecution", "timedOutByRunBudget")
_HEAD = 512
Json = dict[str, Any]
_COMPLETION = (*_TIMEOUTS, "aborted", "externalAbort", "usage", "stopReason", "promptError")
SATURATION = 50.0
"""Percent of the context window from which the fill of a context is an event."""
MAX_SKILLS = 256
"""Skills of a session that are named."""
MAX_SKILL_NAME = 128
"""Characters of a skill's name that are kept."""
_FAILED = frozenset({"error", "aborted"})
_ID_SEPARATOR = ":"
_RunEvent = tuple[str, str, Json, datetime]


class ToolRecord(msgspec.Struct, gc=False):
    """One call of a tool in the trajectory: the times and data of the call and of its result, as far as they are recorded."""

    called_at: datetime | None = None
    call: Json = {}
    returned_at: datetime | None = None
    result: Json | None = None


class Attempt(msgspec.Struct, gc=False):
    """One attempt of a run: when it began, and what its completion says, where there is one.

    `error` is the message of its last answer's failure; `prompt_tokens` are those of the last request to the model.
    """

    started_at: datetime
    completed_at: datetime | None = None
    completion: Json = {}
    error: str | None = None
    prompt_tokens: int = 0

    @property
    def has_failed(self) -> bool:
        """True if the model's provider failed it."""
        return self.completion.get("stopReason") == "error"


class Run(msgspec.Struct, gc=False):
    """One run of a session, as far as its trajectory was read."""

    id: str
    provider: str | None = None
    model: str | None = None
    last_at: datetime | None = None
    attempts: list[Attempt] = []
    tools: dict[str, ToolRecord] = {}
    skills: list[str] | None = None
    ended_at: datetime | None = None
    end: Json = {}

    @property
    def started_at(self) -> datetime | None:
        """The time when its first attempt began."""
        return self.attempts[0].started_at if self.attempts else self.last_at

    @property
    def outcome(self) -> str | None:
        """`timed_out` or `aborted`; None for a run that ended in another way, or is not known to have ended."""
        last = self.end or (self.attempts[-1].completion if self.attempts else {})
        if any(last.get(name) is True for name in _TIMEOUTS):
            return "timed_out"
        return "aborted" if last.get("aborted") is True or last.get("externalAbort") is True else None


class Trajectory:
    """The runs of one session; `is_torn` says that the last line was being written."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.faults: list[LineFault] = []
        self.is_torn = False

    def read(self, lines: Iterable[Line]) -> None:
        """Read all lines, up to a torn last one."""
        for line in lines:
            if any(b'"type":"%b"' % kind.encode() in line.body[:_HEAD] for kind in SKIPPED):
                continue
            value = _metadata(line) or decode_line(line)
            if is_torn(line, value):
                self.is_torn = True
                return
            problem = value if isinstance(value, Problem) else self._add_event(value)
            if problem is not None:
                detail = f"trajectory, {problem.detail}"
                self.faults.append(line_fault(line, Problem(f"trajectory_{problem.reason}", detail)))

    def settled(self, now: datetime, gap: timedelta) -> Iterator[Run]:
        """Yield the runs whose transcript does not grow any more, in the order in which they began."""
        runs = list(self.runs.values())
        for index, run in enumerate(runs):
            waits = SETTLED if run.ended_at is not None or index < len(runs) - 1 else gap
            if run.last_at is not None and now - run.last_at > waits:
                yield run

    def _add_event(self, event: Json) -> Problem | None:
        kind, run_id, data = event.get("type"), event.get("runId"), event.get("data")
        if not (isinstance(kind, str) and isinstance(run_id, str) and isinstance(data, dict)):
            return Problem("wrong_type", "type, runId and data: are not a string, a string and an object")
        if has_surrogates(run_id):
            return Problem("bounds", f"runId: {NOT_UNICODE}")
        at = _time(event.get("ts"))
        if at is None:
            return Problem("bad_timestamp", "ts: is no time of the years 2000 to 2099")
        run = self.runs.get(run_id)
        if run is None:
            if len(self.runs) >= MAX_RUNS:
                return None
            run = self.runs[run_id] = Run(
                run_id, provider=_valid_text(event.get("provider")), model=_valid_text(event.get("modelId"))
            )
        run.last_at = at if run.last_at is None else max(run.last_at, at)
        _add(run, kind, at, data)
        return None


def _metadata(line: Line) -> Json | None:
    """Return a line of the kind METADATA, read in part; None for any other, and for one that has to be decoded whole."""
    if b'"type":"%b"' % METADATA.encode() not in line.body[:_HEAD]:
        return None
    try:
        metadata = msgspec.json.decode(line.body, type=_Metadata)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return msgspec.structs.asdict(metadata) | {"data": {"skills": metadata.data.skills}}


class _Metadata(msgspec.Struct):
    """A line of the kind METADATA without the configuration, which is most of it."""

    type: str
    data: _Skills
    ts: Any = None
    runId: Any = None  # noqa: N815 - the name in the line
    provider: Any = None
    modelId: Any = None  # noqa: N815 - the name in the line


class _Skills(msgspec.Struct):
    skills: Any = None


def _time(value: Any) -> datetime | None:
    try:
        return parse_timestamp(value) if isinstance(value, str | int | float) else None
    except ValueError:
        return None


def _valid_text(value: Any) -> str | None:
    return value if isinstance(value, str) and not has_surrogates(value) else None


def _add(run: Run, kind: str, at: datetime, data: Json) -> None:
    """Add one event to its run."""
    if kind == "session.started":
        run.attempts.append(Attempt(at))
    elif kind == METADATA:
        names = _read_skill_names(data.get("skills"))
        run.skills = run.skills if names is None else names
    elif kind in ("tool.call", "tool.result"):
        call_id = data.get("toolCallId")
        if not isinstance(call_id, str) or has_surrogates(call_id):
            return
        tool = run.tools.setdefault(call_id, ToolRecord())
        if kind == "tool.call" and tool.called_at is None:
            tool.called_at, tool.call = at, data
        elif kind == "tool.result" and tool.result is None:
            tool.returned_at, tool.result = at, data
    elif kind == "model.completed":
        if not run.attempts or run.attempts[-1].completed_at is not None:
            run.attempts.append(Attempt(at))
        last = run.attempts[-1]
        last.completed_at, last.completion = at, {name: data[name] for name in _COMPLETION if name in data}
        last.error, last.prompt_tokens = _error(data.get("messagesSnapshot")), _prompt_tokens(data.get("promptCache"))
    elif kind == "session.ended":
        run.ended_at, run.end = at, data


def _read_skill_names(skills: Any) -> list[str] | None:
    """Return the names in a list of skills or a snapshot that holds one, sorted; None if there is no such list."""
    entries = skills
    if isinstance(skills, dict):
        entries = next((skills[name] for name in ("entries", "skills") if isinstance(skills.get(name), list)), None)
    if not isinstance(entries, list):
        return None
    names = (entry.get("name") if isinstance(entry, dict) else entry for entry in entries)
    return sorted({name for name in names if isinstance(name, str) and name and not has_surrogates(name)})


def _error(messages: Any) -> str | None:
    last = messages[-1] if isinstance(messages, list) and messages else None
    return _valid_text(last.get("errorMessage")) if isinstance(last, dict) else None


def _prompt_tokens(cache: Any) -> int:
    """Return the tokens of the last request, as the provider counted them; 0 where that is not known."""
    call = cache.get("lastCallUsage") if isinstance(cache, dict) else None
    if not isinstance(call, dict):
        return 0
    context = call.get("contextUsage")
    counted = context.get("promptTokens") if isinstance(context, dict) else None
    usage = counts_of(call)
    if type(counted) is int and counted > 0:
        return counted
    return 0 if usage is None else usage.read


class Fill(NamedTuple):
    """The size of a session's context, from its entry: how many tokens the window of which model has."""

    window: int
    provider: str | None
    model: str | None


class Note(NamedTuple):
    """The facts in the transcript about one message of the assistant: time, run, exchange, how it ended, its usage."""

    at: datetime
    run: str | None
    exchange: str | None
    stop: str | None
    usage: Usage | None


class Notes:
    """The contents of a session transcript: the ids of its calls and results, its messages, and tools inside wrapped calls."""

    def __init__(self) -> None:
        self.calls: set[str] = set()
        self.results: set[str] = set()
        self.messages: list[Note] = []
        self._in_time: list[Note] = []
        self._by_run: dict[str, list[Note]] = {}
        self.wrapped: Mapping[str, str] = {}

    def add(self, note: Note) -> None:
        """Note one message."""
        if note.run is None:
            self.messages.append(note)
        else:
            self._by_run.setdefault(note.run, []).append(note)

    def of_run(self, run: Run, until: datetime | None) -> list[Note]:
        """Return the messages of a run; `until` is when the next one began."""
        named = self._by_run.get(run.id, [])
        if named or run.started_at is None or run.last_at is None:
            return named
        end = run.last_at + SETTLED if until is None else min(until, run.last_at + SETTLED)
        if len(self._in_time) != len(self.messages):
            self._in_time = sorted(self.messages, key=lambda note: note.at)
        first, last = (bisect_left(self._in_time, at, key=lambda note: note.at) for at in (run.started_at, end))
        return self._in_time[first:last]


def events_of_run(run: Run, notes: Notes, *, until: datetime | None, fill: Fill | None) -> Iterator[tuple[Json, datetime]]:
    """Yield the events of one settled run that the transcript lacks, each with its time and without an id of the session."""
    messages = notes.of_run(run, until)
    exchange = next((note.exchange for note in messages if note.exchange), None)
    for kind, key, event, at in _run_events(run, notes, messages, fill):
        event |= {"event_id": _event_id(run.id, kind, key), "run_id": run.id, "told_by": TRAJECTORY}
        if exchange is not None:
            event["exchange_id"] = exchange
        yield event, at


def _run_events(run: Run, notes: Notes, messages: list[Note], fill: Fill | None) -> Iterator[_RunEvent]:
    for call_id, tool in run.tools.items():
        yield from _tool_events(call_id, tool, notes)
    yield from _failure_events(run, messages)
    yield from _usage_event(run, messages)
    yield from _saturation_event(run, fill)


def _tool_events(call_id: str, tool: ToolRecord, notes: Notes) -> Iterator[_RunEvent]:
    if any(part in notes.wrapped or part in notes.calls for part in call_id.split(_ID_SEPARATOR)[1:-1]):
        return
    if call_id not in notes.calls and tool.called_at is not None:
        block = {"id": call_id, "name": tool.call.get("name"), "arguments": tool.call.get("args")}
        yield "call", call_id, call_event(block), tool.called_at
    if call_id in notes.results or tool.result is None or tool.returned_at is None:
        return
    result = tool.result.get("result")
    result = result if isinstance(result, dict) else {}
    message = {
        "toolCallId": call_id,
        "toolName": tool.result.get("name"),
        "isError": tool.result.get("success") is False,
        "details": result.get("details"),
    }
    content = result.get("content")
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else content
    inside = notes.wrapped if tool.result.get("name") == WRAPPER else {}
    for index, event in enumerate(output_events(message, text_of(blocks), inside)):
        yield f"result.{index}", call_id, event, tool.returned_at


def _failure_events(run: Run, messages: list[Note]) -> Iterator[_RunEvent]:
    outcome = run.outcome
    final = len(run.attempts) - 1
    for index, attempt in enumerate(run.attempts):
        if not attempt.has_failed or attempt.completed_at is None or (index == final and outcome is not None):
            continue
        if _has_failed_message(messages, run.attempts, index):
            continue
        yield (
            "error",
            str(index),
            {"event": "error_event", "action": "error", **_failure_fields(run, attempt)},
            attempt.completed_at,
        )
        if index < final:
            retry = {"event": "retry_event", "action": "retry"}
            yield "retry", str(index + 1), retry, run.attempts[index + 1].started_at
    at = run.ended_at or run.last_at
    if outcome is not None and at is not None and not (messages and messages[-1].stop in _FAILED):
        last = run.attempts[-1] if run.attempts else Attempt(at)
        yield outcome, "", {"event": "error_event", "action": outcome, **_failure_fields(run, last)}, at


def _has_failed_message(messages: list[Note], attempts: list[Attempt], index: int) -> bool:
    """Return whether the transcript has a failed message from the time of an attempt, up to the next one."""
    begin = attempts[index].started_at
    end = attempts[index + 1].started_at if index + 1 < len(attempts) else None
    return any(note.stop in _FAILED and begin <= note.at and (end is None or note.at < end) for note in messages)


def _failure_fields(run: Run, attempt: Attempt) -> Json:
    """Return the message of a failure, and the model that was asked."""
    message = attempt.error or attempt.completion.get("promptError")
    fields = {"message": message if isinstance(message, str) else None, "provider": run.provider, "model": run.model}
    return {name: value for name, value in fields.items() if value is not None}


def _usage_event(run: Run, messages: list[Note]) -> Iterator[_RunEvent]:
    """Yield the usage of the run beyond its messages in the transcript; nothing if that is less than they say."""
    counted = [counts_of(attempt.completion.get("usage")) for attempt in run.attempts]
    used = [usage for usage in counted if usage is not None and usage.total]
    if not used or run.last_at is None:
        return
    reported = [note.usage for note in messages if note.usage is not None]
    rest = Usage(
        *(max(0, sum(whole) - sum(part)) for whole, part in zip(zip(*used, strict=True), _columns(reported), strict=True))
    )
    if rest.total and sum(usage.total for usage in used) > sum(usage.total for usage in reported):
        counts = {"total": rest.total, **dict(zip(("input", "cache_read", "cache_write", "output"), rest, strict=True))}
        named = {"provider": run.provider, "model": run.model}
        event = {"event": "token_usage", "usage": counts, **{name: value for name, value in named.items() if value}}
        yield "usage", "", event, run.last_at


def _columns(usages: list[Usage]) -> list[tuple[int, ...]]:
    return list(zip(*usages, strict=True)) or [(0,)] * len(Usage._fields)


def _saturation_event(run: Run, fill: Fill | None) -> Iterator[_RunEvent]:
    last = next((attempt for attempt in reversed(run.attempts) if attempt.prompt_tokens), None)
    if fill is None or last is None or last.completed_at is None or (run.provider, run.model) != (fill.provider, fill.model):
        return
    percent = round(100 * last.prompt_tokens / fill.window, 1)
    # A prompt that was answered fits: more than all of the window means that it was another window.
    if SATURATION <= percent <= 100:
        event = {
            "event": "context_event",
            "action": "context_usage",
            "saturation": percent,
            "prompt_tokens": last.prompt_tokens,
            "context_window": fill.window,
        }
        yield "context", str(fill.window), event, last.completed_at


def _event_id(run: str, kind: str, key: str) -> str:
    """Return the id of an event: always the same for a run, a kind and a key; digested where it would be too long."""
    name = _ID_SEPARATOR.join(part for part in (TRAJECTORY, run, kind, key) if part)
    return name if len(name) <= MAX_ID else f"{TRAJECTORY}{_ID_SEPARATOR}{blake2b(name.encode(), digest_size=16).hexdigest()}"


def skills_event(names: Sequence[str]) -> Json:
    """Return the event that says which skills a session had; the same set is always the same event."""
    digest = blake2b("\n".join(names).encode(), digest_size=8).hexdigest()
    shown = [name[:MAX_SKILL_NAME] for name in names[:MAX_SKILLS]]
    left_out = {"left_out": len(names) - MAX_SKILLS} if len(names) > MAX_SKILLS else {}
    return {
        "event": "skills_available",
        "event_id": f"skills:{digest}",
        "skills": shown,
        **left_out,
        "told_by": TRAJECTORY,
    }
