"""OpenClaw's trajectory: a separate record of a session's runs, which completes the transcript.

A run is the gateway's work on one message. Its trajectory has these lines, in this order and possibly several times: `session.started` (an
attempt starts), `trace.metadata`, `tool.call` and `tool.result`, `model.completed` (the attempt is over). At the end it has one
`session.ended`. Prompts and contexts, by far the largest part, are never loaded.

1. A trajectory consists of rows of `trajectory_runtime_events` in a database, or of lines of `<session>.trajectory.jsonl`, with the same
   objects.
2. An attempt failed if it completed with the stop reason `error`. A run was aborted or timed out if its end says so or, without an end, its
   last completion.
3. A run is settled a minute after its end, because its transcript may still grow until then. A run without an end is settled when another
   run has started, or after the session gap.
4. OpenClaw shortens what it records, and drops the oldest events of a long run. So a missing event proves nothing.

Events that only the trajectory has are marked with `told_by: trajectory`. The messages of a run are found by its run id (since 2026.9), else
by their times.

5. Tool calls and results whose id is not in the transcript. The id of an inner call contains the wrapper's id
   (`tool_search_code:<id>:<tool>:<n>`), and the transcript has the call under the wrapper's id.
6. Failed attempts without a failed message in the transcript give an `error_event`, and a `retry_event` if another attempt followed. Aborted
   and timed-out runs give an `error_event` with that action, unless the transcript ends in a failure.
7. Usage of the run that its messages in the transcript do not account for.
8. The fill level of the context window, if it is known and at least MIN_SATURATION percent. The size of the window comes from the session's
   entry, so it applies only to runs with the provider and model of that entry.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from hashlib import blake2b
from operator import attrgetter
from typing import Any, NamedTuple

import msgspec

from audit.diagnosis.duplicate_rules import TRAJECTORY
from audit.times import parse_timestamp
from schemas.bounds import MAX_ID, NOT_UNICODE, has_surrogates
from streams.sources.lines import Line, Problem, decode_line, is_torn, line_fault
from streams.sources.openclaw.entry import Usage, read_counts
from streams.sources.openclaw.events import WRAPPER, call_event, output_events
from streams.sources.openclaw.text import text_of
from streams.sources.source import LineFault

SETTLE_TIME = timedelta(minutes=1)
"""Time after the end of a run in which its transcript may still grow."""
SKIPPED_KINDS = ("context.compiled", "prompt.submitted", "trace.artifacts")
"""Kinds of lines that only repeat prompts, contexts and answers."""
METADATA_KIND = "trace.metadata"
"""Kind of line with the skills of a run."""
MAX_RUNS = 100_000
"""Maximum number of runs read per session."""
_TIMEOUTS = ("timedOut", "idleTimedOut", "timedOutDuringCompaction", "timedOutDuringToolExecution", "timedOutByRunBudget")
_HEAD_BYTES = 512
Json = dict[str, Any]
_COMPLETION_FIELDS = (*_TIMEOUTS, "aborted", "externalAbort", "usage", "stopReason", "promptError")
MIN_SATURATION = 50.0
"""Fill level of the context window, in percent, from which it is reported."""
MAX_SKILLS = 256
"""Maximum number of skills named in an event."""
MAX_SKILL_NAME = 128
"""Characters kept of a skill's name."""
_FAILED = frozenset({"error", "aborted"})
_ID_SEPARATOR = ":"
_RunEvent = tuple[str, str, Json, datetime]


class ToolRecord(msgspec.Struct, gc=False):
    """A tool call in the trajectory: the times and data of the call and of its result, if they were recorded."""

    called_at: datetime | None = None
    call: Json = {}
    returned_at: datetime | None = None
    result: Json | None = None


class Attempt(msgspec.Struct, gc=False):
    """An attempt of a run: its start, and its completion if it has one.

    `error` is the error message of its last answer. `prompt_tokens` is the token count of its last request to the model.
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
    """A run of a session, as recorded in its trajectory."""

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
        """The start of the first attempt, or the time of the last line if there is none."""
        return self.attempts[0].started_at if self.attempts else self.last_at

    @property
    def outcome(self) -> str | None:
        """`timed_out` or `aborted`; None for a run that ended otherwise or has not ended."""
        last = self.end or (self.attempts[-1].completion if self.attempts else {})
        if any(last.get(name) is True for name in _TIMEOUTS):
            return "timed_out"
        return "aborted" if last.get("aborted") is True or last.get("externalAbort") is True else None


class Trajectory:
    """The runs of one session. `is_torn` is True if the last line was still being written."""

    def __init__(self) -> None:
        self.runs: dict[str, Run] = {}
        self.faults: list[LineFault] = []
        self.is_torn = False

    def read(self, lines: Iterable[Line]) -> None:
        """Read all lines, up to a torn last one."""
        for line in lines:
            if any(b'"type":"%b"' % kind.encode() in line.body[:_HEAD_BYTES] for kind in SKIPPED_KINDS):
                continue
            value = _decode_metadata(line) or decode_line(line)
            if is_torn(line, value):
                self.is_torn = True
                return
            problem = value if isinstance(value, Problem) else self._add_event(value)
            if problem is not None:
                detail = f"trajectory, {problem.detail}"
                self.faults.append(line_fault(line, Problem(f"trajectory_{problem.reason}", detail)))

    def settled_runs(self, now: datetime, gap: timedelta) -> Iterator[Run]:
        """Yield the runs whose transcript no longer grows, by start."""
        runs = list(self.runs.values())
        for index, run in enumerate(runs):
            settle_time = SETTLE_TIME if run.ended_at is not None or index < len(runs) - 1 else gap
            if run.last_at is not None and now - run.last_at > settle_time:
                yield run

    def _add_event(self, event: Json) -> Problem | None:
        kind = event.get("type")
        run_id = event.get("runId")
        data = event.get("data")
        if not (isinstance(kind, str) and isinstance(run_id, str) and isinstance(data, dict)):
            return Problem("wrong_type", "type, runId and data: must be a string, a string and an object")
        if has_surrogates(run_id):
            return Problem("bounds", f"runId: {NOT_UNICODE}")
        at = _parse_time(event.get("ts"))
        if at is None:
            return Problem("bad_timestamp", "ts: is not a time in the years 2000 to 2099")
        run = self.runs.get(run_id)
        if run is None:
            if len(self.runs) >= MAX_RUNS:
                return None
            run = Run(run_id, provider=_read_valid_text(event.get("provider")), model=_read_valid_text(event.get("modelId")))
            self.runs[run_id] = run
        run.last_at = at if run.last_at is None else max(run.last_at, at)
        _apply_event(run, kind, at, data)
        return None


def _decode_metadata(line: Line) -> Json | None:
    """Return a METADATA_KIND line, partly decoded; None for any other line, and for one that cannot be decoded like this."""
    if b'"type":"%b"' % METADATA_KIND.encode() not in line.body[:_HEAD_BYTES]:
        return None
    try:
        metadata = msgspec.json.decode(line.body, type=_Metadata)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return msgspec.structs.asdict(metadata) | {"data": {"skills": metadata.data.skills}}


class _Metadata(msgspec.Struct):
    """A METADATA_KIND line without the configuration, which is its largest part."""

    type: str
    data: _Skills
    ts: Any = None
    runId: Any = None  # noqa: N815 - the name in the line
    provider: Any = None
    modelId: Any = None  # noqa: N815 - the name in the line


class _Skills(msgspec.Struct):
    skills: Any = None


def _parse_time(value: Any) -> datetime | None:
    try:
        return parse_timestamp(value) if isinstance(value, str | int | float) else None
    except ValueError:
        return None


def _read_valid_text(value: Any) -> str | None:
    return value if isinstance(value, str) and not has_surrogates(value) else None


def _apply_event(run: Run, kind: str, at: datetime, data: Json) -> None:
    """Add one event to its run."""
    if kind == "session.started":
        run.attempts.append(Attempt(at))
    elif kind == METADATA_KIND:
        names = _read_skill_names(data.get("skills"))
        run.skills = run.skills if names is None else names
    elif kind in ("tool.call", "tool.result"):
        call_id = data.get("toolCallId")
        if not isinstance(call_id, str) or has_surrogates(call_id):
            return
        tool = run.tools.setdefault(call_id, ToolRecord())
        if kind == "tool.call" and tool.called_at is None:
            tool.called_at = at
            tool.call = data
        elif kind == "tool.result" and tool.result is None:
            tool.returned_at = at
            tool.result = data
    elif kind == "model.completed":
        if not run.attempts or run.attempts[-1].completed_at is not None:
            run.attempts.append(Attempt(at))
        attempt = run.attempts[-1]
        attempt.completed_at = at
        attempt.completion = {name: data[name] for name in _COMPLETION_FIELDS if name in data}
        attempt.error = _read_error(data.get("messagesSnapshot"))
        attempt.prompt_tokens = _read_prompt_tokens(data.get("promptCache"))
    elif kind == "session.ended":
        run.ended_at = at
        run.end = data


def _read_skill_names(skills: Any) -> list[str] | None:
    """Return the sorted names in a list of skills, or in a snapshot with such a list; None if there is none."""
    entries = skills
    if isinstance(skills, dict):
        entries = next((skills[name] for name in ("entries", "skills") if isinstance(skills.get(name), list)), None)
    if not isinstance(entries, list):
        return None
    names = (entry.get("name") if isinstance(entry, dict) else entry for entry in entries)
    return sorted({name for name in names if isinstance(name, str) and name and not has_surrogates(name)})


def _read_error(messages: Any) -> str | None:
    last = messages[-1] if isinstance(messages, list) and messages else None
    return _read_valid_text(last.get("errorMessage")) if isinstance(last, dict) else None


def _read_prompt_tokens(cache: Any) -> int:
    """Return the provider's token count of the last request; 0 if unknown."""
    last_call = cache.get("lastCallUsage") if isinstance(cache, dict) else None
    if not isinstance(last_call, dict):
        return 0
    context = last_call.get("contextUsage")
    prompt_tokens = context.get("promptTokens") if isinstance(context, dict) else None
    if type(prompt_tokens) is int and prompt_tokens > 0:
        return prompt_tokens
    usage = read_counts(last_call)
    return 0 if usage is None else usage.read


class ContextWindow(NamedTuple):
    """The size of a session's context window in tokens, and the model it belongs to."""

    tokens: int
    provider: str | None
    model: str | None


class TranscriptMessage(NamedTuple):
    """Facts about an assistant message in the transcript: time, run, exchange, stop reason and usage."""

    at: datetime
    run: str | None
    exchange: str | None
    stop: str | None
    usage: Usage | None


class TranscriptIndex:
    """Index of a transcript: the ids of its calls and results, its messages, and the inner tools of wrapped calls."""

    def __init__(self) -> None:
        self.calls: set[str] = set()
        self.results: set[str] = set()
        self.messages: list[TranscriptMessage] = []
        self._by_time: list[TranscriptMessage] = []
        self._by_run: dict[str, list[TranscriptMessage]] = {}
        self.wrapped: Mapping[str, str] = {}

    def add(self, message: TranscriptMessage) -> None:
        """Add one message."""
        if message.run is None:
            self.messages.append(message)
        else:
            self._by_run.setdefault(message.run, []).append(message)

    def messages_of_run(self, run: Run, until: datetime | None) -> list[TranscriptMessage]:
        """Return the messages of a run; `until` is the start of the next run."""
        own_messages = self._by_run.get(run.id, [])
        if own_messages or run.started_at is None or run.last_at is None:
            return own_messages
        end = run.last_at + SETTLE_TIME if until is None else min(until, run.last_at + SETTLE_TIME)
        if len(self._by_time) != len(self.messages):
            self._by_time = sorted(self.messages, key=attrgetter("at"))
        first = bisect_left(self._by_time, run.started_at, key=attrgetter("at"))
        last = bisect_left(self._by_time, end, key=attrgetter("at"))
        return self._by_time[first:last]


def build_run_events(
    run: Run, index: TranscriptIndex, *, until: datetime | None, context_window: ContextWindow | None
) -> Iterator[tuple[Json, datetime]]:
    """Yield the events of a settled run that the transcript lacks, each with its time."""
    messages = index.messages_of_run(run, until)
    exchange = next((message.exchange for message in messages if message.exchange), None)
    for kind, key, event, at in _iterate_run_events(run, index, messages, context_window):
        event |= {"event_id": _build_event_id(run.id, kind, key), "run_id": run.id, "told_by": TRAJECTORY}
        if exchange is not None:
            event["exchange_id"] = exchange
        yield event, at


def _iterate_run_events(
    run: Run, index: TranscriptIndex, messages: list[TranscriptMessage], context_window: ContextWindow | None
) -> Iterator[_RunEvent]:
    for call_id, tool in run.tools.items():
        yield from _build_tool_events(call_id, tool, index)
    yield from _build_failure_events(run, messages)
    yield from _build_usage_event(run, messages)
    yield from _build_saturation_event(run, context_window)


def _build_tool_events(call_id: str, tool: ToolRecord, index: TranscriptIndex) -> Iterator[_RunEvent]:
    if any(part in index.wrapped or part in index.calls for part in call_id.split(_ID_SEPARATOR)[1:-1]):
        return
    if call_id not in index.calls and tool.called_at is not None:
        block = {"id": call_id, "name": tool.call.get("name"), "arguments": tool.call.get("args")}
        yield "call", call_id, call_event(block), tool.called_at
    if call_id in index.results or tool.result is None or tool.returned_at is None:
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
    inner_tools = index.wrapped if tool.result.get("name") == WRAPPER else {}
    for number, event in enumerate(output_events(message, text_of(blocks), inner_tools)):
        yield f"result.{number}", call_id, event, tool.returned_at


def _build_failure_events(run: Run, messages: list[TranscriptMessage]) -> Iterator[_RunEvent]:
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
            {"event": "error_event", "action": "error", **_build_failure_fields(run, attempt)},
            attempt.completed_at,
        )
        if index < final:
            retry = {"event": "retry_event", "action": "retry"}
            yield "retry", str(index + 1), retry, run.attempts[index + 1].started_at
    at = run.ended_at or run.last_at
    if outcome is not None and at is not None and not (messages and messages[-1].stop in _FAILED):
        last = run.attempts[-1] if run.attempts else Attempt(at)
        yield outcome, "", {"event": "error_event", "action": outcome, **_build_failure_fields(run, last)}, at


def _has_failed_message(messages: list[TranscriptMessage], attempts: list[Attempt], index: int) -> bool:
    """Return whether the transcript has a failed message between the start of an attempt and the next one."""
    begin = attempts[index].started_at
    end = attempts[index + 1].started_at if index + 1 < len(attempts) else None
    return any(message.stop in _FAILED and begin <= message.at and (end is None or message.at < end) for message in messages)


def _build_failure_fields(run: Run, attempt: Attempt) -> Json:
    """Return the error message of a failure, and the model that failed."""
    message = attempt.error or attempt.completion.get("promptError")
    fields = {"message": message if isinstance(message, str) else None, "provider": run.provider, "model": run.model}
    return {name: value for name, value in fields.items() if value is not None}


def _build_usage_event(run: Run, messages: list[TranscriptMessage]) -> Iterator[_RunEvent]:
    """Yield the usage of a run that its messages in the transcript do not account for, if there is any."""
    counted = [read_counts(attempt.completion.get("usage")) for attempt in run.attempts]
    used = [usage for usage in counted if usage is not None and usage.total]
    if not used or run.last_at is None:
        return
    reported = [message.usage for message in messages if message.usage is not None]
    run_usage = _add_up_usage(used)
    reported_usage = _add_up_usage(reported)
    counts = zip(run_usage, reported_usage, strict=True)
    missing = Usage(*(max(0, run_count - reported_count) for run_count, reported_count in counts))
    if missing.total and run_usage.total > reported_usage.total:
        event: Json = {
            "event": "token_usage",
            "usage": {
                "total": missing.total,
                "input": missing.plain,
                "cache_read": missing.cache_read,
                "cache_write": missing.cache_write,
                "output": missing.output,
            },
        }
        if run.provider:
            event["provider"] = run.provider
        if run.model:
            event["model"] = run.model
        yield "usage", "", event, run.last_at


def _add_up_usage(usages: Iterable[Usage]) -> Usage:
    total = Usage(0, 0, 0, 0)
    for usage in usages:
        total = Usage(*(sum(counts) for counts in zip(total, usage, strict=True)))
    return total


def _build_saturation_event(run: Run, context_window: ContextWindow | None) -> Iterator[_RunEvent]:
    last = next((attempt for attempt in reversed(run.attempts) if attempt.prompt_tokens), None)
    if (
        context_window is None
        or last is None
        or last.completed_at is None
        or (run.provider, run.model) != (context_window.provider, context_window.model)
    ):
        return
    percent = round(100 * last.prompt_tokens / context_window.tokens, 1)
    # A prompt that was answered did fit its window, so over 100 percent means that the window was another.
    if MIN_SATURATION <= percent <= 100:
        event = {
            "event": "context_event",
            "action": "context_usage",
            "saturation": percent,
            "prompt_tokens": last.prompt_tokens,
            "context_window": context_window.tokens,
        }
        yield "context", str(context_window.tokens), event, last.completed_at


def _build_event_id(run: str, kind: str, key: str) -> str:
    """Return the id of an event, built from run, kind and key; their digest if it would be too long."""
    name = _ID_SEPARATOR.join(part for part in (TRAJECTORY, run, kind, key) if part)
    return name if len(name) <= MAX_ID else f"{TRAJECTORY}{_ID_SEPARATOR}{blake2b(name.encode(), digest_size=16).hexdigest()}"


def build_skills_event(names: Sequence[str]) -> Json:
    """Return the event with the skills of a session. Equal lists of skills give the same event."""
    digest = blake2b("\n".join(names).encode(), digest_size=8).hexdigest()
    event: Json = {
        "event": "skills_available",
        "event_id": f"skills:{digest}",
        "skills": [name[:MAX_SKILL_NAME] for name in names[:MAX_SKILLS]],
        "told_by": TRAJECTORY,
    }
    if len(names) > MAX_SKILLS:
        event["left_out"] = len(names) - MAX_SKILLS
    return event
