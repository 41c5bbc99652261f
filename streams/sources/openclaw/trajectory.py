"""OpenClaw's trajectory: a separate record of a session's runs, read for what the transcript lacks.

A run is the gateway's work for one message. Its trajectory has, in this order and possibly several times: `session.started`
(an attempt begins), `trace.metadata`, `tool.call` and `tool.result`, `model.completed` (the attempt is over), and once, at the
end, `session.ended`. Prompts and contexts, the largest part by far, are never loaded.

1. It consists of rows of `trajectory_runtime_events` in a database, or lines of `<session>.trajectory.jsonl`, with the same objects.
2. An attempt failed if it completed with the stop reason `error`. A run was aborted or timed out if its end says so, or, without an end,
   its last completion.
3. A run is settled a minute after its end, because the transcript may still be written until then. A run without an end is settled when
   another run begins after it, or after the session gap.
4. OpenClaw shortens what it records and drops the oldest events of a long run, so nothing is concluded from a missing event.

What the transcript lacks becomes events with `told_by: trajectory`. The messages of a run are found by its run id (since 2026.9), else by
their times.

5. Tool calls and results whose id is not in the transcript. An inner call, whose id contains the wrapper's
   (`tool_search_code:<id>:<tool>:<n>`), is in the transcript under the wrapper's id.
6. Failed attempts without a failed message in the transcript: an `error_event`, and a `retry_event` if another attempt followed. Aborted or
   timed-out runs: an `error_event` with that action, unless the transcript ends in a failure.
7. Usage of the run beyond that of its messages in the transcript.
8. The fill of the context, if known and at least SATURATION percent. The window size comes from the session's entry, so it applies only to
   runs with the entry's provider and model.
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
"""Time after the end of a run during which its transcript may still grow."""
SKIPPED = ("context.compiled", "prompt.submitted", "trace.artifacts")
"""Kinds of lines that repeat prompts, contexts and answers, and are skipped."""
METADATA = "trace.metadata"
"""Kind of line with the skills of a run."""
MAX_RUNS = 100_000
"""Runs reported per session."""
_TIMEOUTS = ("timedOut", "idleTimedOut", "timedOutDuringCompaction", "timedOutDuringToolExecution", "timedOutByRunBudget")
_HEAD = 512
Json = dict[str, Any]
_COMPLETION = (*_TIMEOUTS, "aborted", "externalAbort", "usage", "stopReason", "promptError")
SATURATION = 50.0
"""Percent of the context window from which its fill is reported."""
MAX_SKILLS = 256
"""Skills named per session."""
MAX_SKILL_NAME = 128
"""Characters kept of a skill's name."""
_FAILED = frozenset({"error", "aborted"})
_ID_SEPARATOR = ":"
_RunEvent = tuple[str, str, Json, datetime]


class ToolRecord(msgspec.Struct, gc=False):
    """One tool call in the trajectory: times and data of the call and its result, as far as recorded."""

    called_at: datetime | None = None
    call: Json = {}
    returned_at: datetime | None = None
    result: Json | None = None


class Attempt(msgspec.Struct, gc=False):
    """One attempt of a run: its start, and its completion if it has one.

    `error` is the error message of its last answer; `prompt_tokens` are those of the last request to the model.
    """

    started_at: datetime
    completed_at: datetime | None = None
    completion: Json = {}
    error: str | None = None
    prompt_tokens: int = 0

    @property
    def has_failed(self) -> bool:
        """True if the model's provider failed."""
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
        """`timed_out` or `aborted`; None for a run that ended otherwise or has not ended."""
        last = self.end or (self.attempts[-1].completion if self.attempts else {})
        if any(last.get(name) is True for name in _TIMEOUTS):
            return "timed_out"
        return "aborted" if last.get("aborted") is True or last.get("externalAbort") is True else None


class Trajectory:
    """The runs of one session. `is_torn`: the last line was still being written."""

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
        """Yield the runs whose transcript no longer grows, by start."""
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
    """Return a METADATA line, decoded in part; None for any other line, and for one that has to be decoded whole."""
    if b'"type":"%b"' % METADATA.encode() not in line.body[:_HEAD]:
        return None
    try:
        metadata = msgspec.json.decode(line.body, type=_Metadata)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return msgspec.structs.asdict(metadata) | {"data": {"skills": metadata.data.skills}}


class _Metadata(msgspec.Struct):
    """A METADATA line without the configuration, which is its largest part."""

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
    """Return the sorted names in a list of skills, or in a snapshot with such a list; None if there is none."""
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
    """Return the provider's token count of the last request; 0 if unknown."""
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
    """The context window of a session in tokens, and the model it belongs to."""

    window: int
    provider: str | None
    model: str | None


class Note(NamedTuple):
    """Facts from the transcript about one assistant message: time, run, exchange, stop reason, usage."""

    at: datetime
    run: str | None
    exchange: str | None
    stop: str | None
    usage: Usage | None


class Notes:
    """Contents of a transcript: ids of its calls and results, its messages, and inner tools of wrapped calls."""

    def __init__(self) -> None:
        self.calls: set[str] = set()
        self.results: set[str] = set()
        self.messages: list[Note] = []
        self._in_time: list[Note] = []
        self._by_run: dict[str, list[Note]] = {}
        self.wrapped: Mapping[str, str] = {}

    def add(self, note: Note) -> None:
        """Add one message."""
        if note.run is None:
            self.messages.append(note)
        else:
            self._by_run.setdefault(note.run, []).append(note)

    def of_run(self, run: Run, until: datetime | None) -> list[Note]:
        """Return the messages of a run; `until` is the start of the next run."""
        named = self._by_run.get(run.id, [])
        if named or run.started_at is None or run.last_at is None:
            return named
        end = run.last_at + SETTLED if until is None else min(until, run.last_at + SETTLED)
        if len(self._in_time) != len(self.messages):
            self._in_time = sorted(self.messages, key=lambda note: note.at)
        first, last = (bisect_left(self._in_time, at, key=lambda note: note.at) for at in (run.started_at, end))
        return self._in_time[first:last]


def events_of_run(run: Run, notes: Notes, *, until: datetime | None, fill: Fill | None) -> Iterator[tuple[Json, datetime]]:
    """Yield the events of a settled run that the transcript lacks, each with its time."""
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
    """Return whether the transcript has a failed message between the start of an attempt and the next one."""
    begin = attempts[index].started_at
    end = attempts[index + 1].started_at if index + 1 < len(attempts) else None
    return any(note.stop in _FAILED and begin <= note.at and (end is None or note.at < end) for note in messages)


def _failure_fields(run: Run, attempt: Attempt) -> Json:
    """Return the error message of a failure, and the model."""
    message = attempt.error or attempt.completion.get("promptError")
    fields = {"message": message if isinstance(message, str) else None, "provider": run.provider, "model": run.model}
    return {name: value for name, value in fields.items() if value is not None}


def _usage_event(run: Run, messages: list[Note]) -> Iterator[_RunEvent]:
    """Yield the usage of the run beyond that of its messages in the transcript, if there is any."""
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
    # A prompt that was answered fits its window, so more than 100 percent means another window.
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
    """Return the id of an event, determined by run, kind and key; a digest if it would be too long."""
    name = _ID_SEPARATOR.join(part for part in (TRAJECTORY, run, kind, key) if part)
    return name if len(name) <= MAX_ID else f"{TRAJECTORY}{_ID_SEPARATOR}{blake2b(name.encode(), digest_size=16).hexdigest()}"


def skills_event(names: Sequence[str]) -> Json:
    """Return the event with the skills of a session. The same skills give the same event."""
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
