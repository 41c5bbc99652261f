"""OpenClaw's trajectory: the second account of a session's runs, read for what the transcript does not say.

A run is what the gateway does for one message. Its trajectory has, in this order and possibly several times: `session.started`
(an attempt begins), `trace.metadata`, `tool.call` and `tool.result`, `model.completed` (the attempt is over), and once, at the
end, `session.ended`. Prompts and contexts, the largest part by far, are never loaded.

1. The forms: rows of `trajectory_runtime_events` in a database, else lines of `<session>.trajectory.jsonl`. The objects are the
   same.
2. An attempt is failed when it completed with the stop reason `error`; a run is aborted or timed out when its end says so, or,
   where that is missing, its last completion.
3. A run is settled a minute after its end: until then the transcript may still be written. A run without an end is settled when
   another one began after it, or when the session gap has gone by.
4. OpenClaw shortens what it records, and leaves out the oldest events of a run that has too many: nothing is concluded from an
   event that is not there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta
from typing import Any

import msgspec

from audit.times import parse_timestamp
from schemas.bounds.limits import NOT_UNICODE, has_surrogates
from streams.sources.lines import Line, Problem, decode_line, is_torn, line_fault
from streams.sources.openclaw.entry import counts_of
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


class ToolRecord(msgspec.Struct, gc=False):
    """One call of a tool as the trajectory has it: the times and data of the call and of its result, where they are there."""

    called_at: datetime | None = None
    call: Json = {}
    returned_at: datetime | None = None
    result: Json | None = None


class Attempt(msgspec.Struct, gc=False):
    """One attempt of a run: when it began, and what its completion says, where there is one.

    `error` are the words of its last answer's failure; `prompt_tokens` what the last request of the model was made of.
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
            problem = value if isinstance(value, Problem) else self._take(value)
            if problem is not None:
                words = f"trajectory, {problem.detail}"
                self.faults.append(line_fault(line, Problem(f"trajectory_{problem.reason}", words)))

    def settled(self, now: datetime, gap: timedelta) -> Iterator[Run]:
        """The runs whose transcript does not grow any more, in the order in which they began."""
        runs = list(self.runs.values())
        for place, run in enumerate(runs):
            waits = SETTLED if run.ended_at is not None or place < len(runs) - 1 else gap
            if run.last_at is not None and now - run.last_at > waits:
                yield run

    def _take(self, event: Json) -> Problem | None:
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
            run = self.runs[run_id] = Run(run_id, provider=_word(event.get("provider")), model=_word(event.get("modelId")))
        run.last_at = at if run.last_at is None else max(run.last_at, at)
        _add(run, kind, at, data)
        return None


class _Skills(msgspec.Struct):
    skills: Any = None


class _Metadata(msgspec.Struct):
    """A line of the kind METADATA without the configuration, which is most of it."""

    type: str
    data: _Skills
    ts: Any = None
    runId: Any = None  # noqa: N815 - the name in the line
    provider: Any = None
    modelId: Any = None  # noqa: N815 - the name in the line


def _metadata(line: Line) -> Json | None:
    """A line of the kind METADATA, read in part; None for any other, and for one that has to be looked at closely."""
    if b'"type":"%b"' % METADATA.encode() not in line.body[:_HEAD]:
        return None
    try:
        found = msgspec.json.decode(line.body, type=_Metadata)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return msgspec.structs.asdict(found) | {"data": {"skills": found.data.skills}}


def _add(run: Run, kind: str, at: datetime, data: Json) -> None:
    """Add one event to its run."""
    if kind == "session.started":
        run.attempts.append(Attempt(at))
    elif kind == METADATA:
        names = skill_names(data.get("skills"))
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


def skill_names(skills: Any) -> list[str] | None:
    """The names in a list of skills or a snapshot that holds one, sorted; None where there is no such list."""
    entries = skills
    if isinstance(skills, dict):
        entries = next((skills[name] for name in ("entries", "skills") if isinstance(skills.get(name), list)), None)
    if not isinstance(entries, list):
        return None
    names = (entry.get("name") if isinstance(entry, dict) else entry for entry in entries)
    return sorted({name for name in names if isinstance(name, str) and name and not has_surrogates(name)})


def _error(messages: Any) -> str | None:
    last = messages[-1] if isinstance(messages, list) and messages else None
    return _word(last.get("errorMessage")) if isinstance(last, dict) else None


def _prompt_tokens(cache: Any) -> int:
    """The tokens of the last request, as the provider counted them; 0 where that is not known."""
    call = cache.get("lastCallUsage") if isinstance(cache, dict) else None
    if not isinstance(call, dict):
        return 0
    context = call.get("contextUsage")
    counted = context.get("promptTokens") if isinstance(context, dict) else None
    usage = counts_of(call)
    return counted if type(counted) is int and counted > 0 else usage.read if usage is not None else 0


def _time(value: Any) -> datetime | None:
    try:
        return parse_timestamp(value) if isinstance(value, str | int | float) else None
    except ValueError:
        return None


def _word(value: Any) -> str | None:
    return value if isinstance(value, str) and not has_surrogates(value) else None


_COMPLETION = (*_TIMEOUTS, "aborted", "externalAbort", "usage", "stopReason", "promptError")
