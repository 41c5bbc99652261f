"""Facts about runs that only the trajectory has, as events that say `told_by: trajectory`.

1. Calls and results of tools whose id the transcript does not have. A call inside a wrapped one, whose id holds that of the
   wrapper (`tool_search_code:<id>:<tool>:<n>`), is the call that the transcript tells under the wrapper's id.
2. Failed attempts of which the transcript has no failed message: an `error_event`, and a `retry_event` where another attempt
   followed. A run that was aborted or timed out: an `error_event` of that action, unless the transcript ends in a failure.
3. Usage: what the run used beyond the messages that the transcript has of it.
4. The fill of the context where both figures are there, from SATURATION percent on. The window is that of the session's entry,
   so it counts for runs of the entry's provider and model alone.

The messages of a run carry its run id (since 2026.9), else by their times.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import blake2b
from typing import Any, NamedTuple

from audit.diagnosis.duplicate_rules import TRAJECTORY
from schemas.bounds.limits import MAX_ID
from streams.sources.openclaw.entry import Usage, counts_of
from streams.sources.openclaw.events import WRAPPER, call_event, output_events
from streams.sources.openclaw.storage.windows import Fill
from streams.sources.openclaw.text import text_of
from streams.sources.openclaw.trajectory import SETTLED, Attempt, Run, ToolRecord

SATURATION = 50.0
"""Percent of the context window from which the fill of a context is an event."""
MAX_SKILLS = 256
"""Skills of a session that are named."""
MAX_SKILL_NAME = 128
"""Characters of a skill's name that are kept."""

_FAILED = frozenset({"error", "aborted"})
_BETWEEN = ":"

Json = dict[str, Any]


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
        """The messages of a run; `until` is when the next one began."""
        named = self._by_run.get(run.id, [])
        if named or run.started_at is None or run.last_at is None:
            return named
        end = run.last_at + SETTLED if until is None else min(until, run.last_at + SETTLED)
        if len(self._in_time) != len(self.messages):
            self._in_time = sorted(self.messages, key=lambda note: note.at)
        first, last = (bisect_left(self._in_time, at, key=lambda note: note.at) for at in (run.started_at, end))
        return self._in_time[first:last]


def events_of_run(run: Run, notes: Notes, *, until: datetime | None, fill: Fill | None) -> Iterator[tuple[Json, datetime]]:
    """The events of one settled run that the transcript lacks, each with its time and without an id of the session."""
    messages = notes.of_run(run, until)
    exchange = next((note.exchange for note in messages if note.exchange), None)
    for kind, place, event, at in _told(run, notes, messages, fill):
        event |= {"event_id": _id(run.id, kind, place), "run_id": run.id, "told_by": TRAJECTORY}
        if exchange is not None:
            event["exchange_id"] = exchange
        yield event, at


_Told = tuple[str, str, Json, datetime]


def _told(run: Run, notes: Notes, messages: list[Note], fill: Fill | None) -> Iterator[_Told]:
    for call_id, tool in run.tools.items():
        yield from _tool_events(call_id, tool, notes)
    yield from _failures(run, messages)
    yield from _usage(run, messages)
    yield from _saturation(run, fill)


def _tool_events(call_id: str, tool: ToolRecord, notes: Notes) -> Iterator[_Told]:
    if any(part in notes.wrapped or part in notes.calls for part in call_id.split(_BETWEEN)[1:-1]):
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
    for place, event in enumerate(output_events(message, text_of(blocks), inside)):
        yield f"result.{place}", call_id, event, tool.returned_at


def _failures(run: Run, messages: list[Note]) -> Iterator[_Told]:
    outcome = run.outcome
    final = len(run.attempts) - 1
    for place, attempt in enumerate(run.attempts):
        if not attempt.has_failed or attempt.completed_at is None or (place == final and outcome is not None):
            continue
        if _has_failed_message(messages, run.attempts, place):
            continue
        yield "error", str(place), {"event": "error_event", "action": "error", **_named(run, attempt)}, attempt.completed_at
        if place < final:
            retry = {"event": "retry_event", "action": "retry"}
            yield "retry", str(place + 1), retry, run.attempts[place + 1].started_at
    at = run.ended_at or run.last_at
    if outcome is not None and at is not None and not (messages and messages[-1].stop in _FAILED):
        last = run.attempts[-1] if run.attempts else Attempt(at)
        yield outcome, "", {"event": "error_event", "action": outcome, **_named(run, last)}, at


def _has_failed_message(messages: list[Note], attempts: list[Attempt], place: int) -> bool:
    """Tell whether the transcript has a failed message from the time of an attempt, up to the next one."""
    begin = attempts[place].started_at
    end = attempts[place + 1].started_at if place + 1 < len(attempts) else None
    return any(note.stop in _FAILED and begin <= note.at and (end is None or note.at < end) for note in messages)


def _named(run: Run, attempt: Attempt) -> Json:
    """The words of a failure, and the model that was asked."""
    words = attempt.error or attempt.completion.get("promptError")
    named = {"message": words if isinstance(words, str) else None, "provider": run.provider, "model": run.model}
    return {name: value for name, value in named.items() if value is not None}


def _usage(run: Run, messages: list[Note]) -> Iterator[_Told]:
    """Yield the usage of the run beyond its messages in the transcript; nothing if that is less than they say."""
    given = [counts_of(attempt.completion.get("usage")) for attempt in run.attempts]
    used = [usage for usage in given if usage is not None and usage.total]
    if not used or run.last_at is None:
        return
    known = [note.usage for note in messages if note.usage is not None]
    rest = Usage(
        *(max(0, sum(whole) - sum(part)) for whole, part in zip(zip(*used, strict=True), _columns(known), strict=True))
    )
    if rest.total and sum(usage.total for usage in used) > sum(usage.total for usage in known):
        counts = {"total": rest.total, **dict(zip(("input", "cache_read", "cache_write", "output"), rest, strict=True))}
        named = {"provider": run.provider, "model": run.model}
        event = {"event": "token_usage", "usage": counts, **{name: value for name, value in named.items() if value}}
        yield "usage", "", event, run.last_at


def _columns(usages: list[Usage]) -> list[tuple[int, ...]]:
    return list(zip(*usages, strict=True)) or [(0,)] * len(Usage._fields)


def _saturation(run: Run, fill: Fill | None) -> Iterator[_Told]:
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


def _id(run: str, kind: str, place: str) -> str:
    """The id of an event: always the same for a run, a kind and a place; digested where it would be too long."""
    name = _BETWEEN.join(part for part in (TRAJECTORY, run, kind, place) if part)
    return name if len(name) <= MAX_ID else f"{TRAJECTORY}{_BETWEEN}{blake2b(name.encode(), digest_size=16).hexdigest()}"


def skills_event(names: Sequence[str]) -> Json:
    """The event that says which skills a session had; the same set is always the same event."""
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
