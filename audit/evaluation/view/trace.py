"""Trace of a run for the judge: tool calls and results, artifacts, failures that nothing mended, the end.

| event | becomes |
| --- | --- |
| tool_call | a call |
| tool_output | a result; without a tool's name it has that of the call with its tool_call_id |
| artifact | the artifact of its path; the last content counts, and a deletion takes it away |
| error_event | a failure, until something mends it |
| process_end | the final answer and status of a run without exchanges; a failure where it ended badly |
| session_end, decision | the final answer and status of a run without exchanges |

An error is mended when the run went on. One that names a tool: by a later result of that tool that did not fail. Any other:
by a later tool call, sound result, artifact or decision, or when its exchange, or a later one, was answered. One that says
`recovered` is none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from audit.diagnosis.events import call_arguments, tool_name
from audit.evaluation.cases.paths import normalised
from audit.evaluation.run import Artifact, Failure, Status, ToolCall, ToolResult
from audit.fingerprints import canonical_json
from audit.times import parse_timestamp

Event = Mapping[str, Any]

_OUTPUT = ("result", "output", "content", "text", "response", "data", "stdout", "message")
_CONTENT = ("content", "excerpt", "text")
_PATH = ("path", "file_path", "file", "filename", "name")
_FINAL = ("final_response", "response", "answer", "output", "result", "text", "message", "content", "decision", "summary")
_WORDS = ("message", "error", "errorMessage", "reason", "text", "description", "detail")
_CALL_ID = ("tool_call_id", "call_id")
_EXIT_CODE = ("exit_code", "exitCode", "returncode", "return_code")
FAILED_STATUSES = frozenset(
    {"error", "errored", "failed", "failure", "fail", "timeout", "timed_out", "crashed", "denied", "refused"}
)
_DELETED = frozenset({"delete", "deleted", "remove", "removed"})
_STATUSES: Mapping[str, Status] = {
    **dict.fromkeys(("answered", "ok", "success", "succeeded", "completed", "complete", "done", "finished"), "answered"),
    **dict.fromkeys(FAILED_STATUSES, "error"),
    **dict.fromkeys(("aborted", "abort", "cancelled", "canceled", "killed", "interrupted", "stopped"), "aborted"),
    "no_response": "no_response",
}


@dataclass(frozen=True, slots=True)
class OpenError:
    """An error that nothing in the events mended so far."""

    place: int
    """The place of the error among all errors."""
    tool: str | None
    exchange_id: str | None
    at: datetime | None
    failure: Failure


@dataclass(slots=True)
class Trace:
    """The steps, artifacts and errors of the events so far; `take` them in the order of the log."""

    steps: list[ToolCall | ToolResult] = field(default_factory=list)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    """By normalised path."""
    final_text: str = ""
    final_status: Status | None = None
    first_at: datetime | None = None
    last_at: datetime | None = None
    _tools: dict[str, str | None] = field(default_factory=dict)
    _errors: dict[str | None, list[OpenError]] = field(default_factory=dict)
    """By tool, so that mending takes no longer the more errors there are."""
    _seen: int = 0

    def take(self, event: Event) -> None:
        """Take the next event; one of a type that says nothing to a judge gives its time alone."""
        at = _time_of(event)
        if at is not None:
            self.first_at = at if self.first_at is None else min(at, self.first_at)
            self.last_at = at if self.last_at is None else max(at, self.last_at)
        reader = _READERS.get(_text(event, ("event",)))
        if reader is not None:
            reader(self, event)

    @property
    def errors(self) -> list[OpenError]:
        """The errors that no event mended, in the order of the log."""
        return sorted((error for errors in self._errors.values() for error in errors), key=lambda error: error.place)

    def _take_call(self, event: Event) -> None:
        tool = tool_name(event)
        call_id = _text(event, _CALL_ID)
        if call_id:
            self._tools[call_id] = tool
        self.steps.append(ToolCall(tool, call_arguments(event)))
        self._went_on()

    def _take_output(self, event: Event) -> None:
        tool = tool_name(event) or self._tools.get(_text(event, _CALL_ID))
        failed = has_failed(event)
        output = _first(event, _OUTPUT)
        self.steps.append(ToolResult(tool, _first(event, ("error",)) if output is None and failed else output, failed))
        if not failed:
            self._went_on(tool)

    def _take_artifact(self, event: Event) -> None:
        path = _text(event, _PATH)
        if not path:
            return
        key, content = normalised(path), _first(event, _CONTENT)
        before = self.artifacts.pop(key, None)
        if _text(event, ("action",)).lower() not in _DELETED:
            known = before.excerpt if before else ""
            self.artifacts[key] = Artifact(path, known if content is None else _written(content))
        self._went_on()

    def _take_error(self, event: Event) -> None:
        if any(event.get(name) is True for name in ("recovered", "resolved", "handled")):
            return
        tool = _text(event, ("tool", "tool_name")) or None
        inner = event.get("error")
        words = (
            _text(event, _WORDS)
            or (_text(inner, _WORDS) if isinstance(inner, dict) else "")
            or _text(event, ("action", "status"))
            or "no words"
        )
        self._note(event, tool, Failure("error_event", f"{tool}: {words}" if tool else words))

    def _take_decision(self, event: Event) -> None:
        self._went_on()
        self._take_end(event)

    def _take_end(self, event: Event) -> None:
        self.final_text = _text(event, _FINAL) or self.final_text
        code = _first(event, _EXIT_CODE)
        said = _STATUSES.get(_text(event, ("status", "outcome", "tool_status")).lower())
        self.final_status = said or ("error" if has_failed(event) else self.final_status)
        if event.get("event") == "process_end" and has_failed(event):
            words = f"ended with exit code {code}" if type(code) is int and code.bit_length() < 64 else "ended in an error"
            self._note(event, None, Failure("process_end", words))

    def _went_on(self, tool: str | None = None) -> None:
        """Everything is mended that names no tool, or this one."""
        self._errors.pop(None, None)
        self._errors.pop(tool, None)

    def _note(self, event: Event, tool: str | None, failure: Failure) -> None:
        error = OpenError(self._seen, tool, _text(event, ("exchange_id",)) or None, _time_of(event), failure)
        self._errors.setdefault(tool, []).append(error)
        self._seen += 1


def trace_of(events: Iterable[Event]) -> Trace:
    """Return the trace of these events."""
    trace = Trace()
    for event in events:
        trace.take(event)
    return trace


def has_failed(event: Event) -> bool:
    """Tell whether a result or an end says that it failed: by a flag, an error, an exit code or a status."""
    error, code = event.get("error"), _first(event, _EXIT_CODE)
    return (
        event.get("is_error") is True
        or error is True
        or (isinstance(error, str | dict) and bool(error))
        or any(event.get(name) is False for name in ("ok", "success"))
        or (type(code) in {int, float} and code != 0)
        or any(_text(event, (name,)).lower() in FAILED_STATUSES for name in ("status", "tool_status"))
    )


def _time_of(event: Event) -> datetime | None:
    try:
        return parse_timestamp(event.get("timestamp"))
    except ValueError:
        return None


def _first(event: Event, names: Iterable[str]) -> Any:
    """The first of these fields that is there and not null."""
    return next((value for name in names if (value := event.get(name)) is not None), None)


def _text(event: Event, names: Iterable[str]) -> str:
    """The first of these fields that is a text and not blank; empty without any."""
    for name in names:
        value = event.get(name)
        if isinstance(value, str) and (text := value.strip()):
            return text
    return ""


def _written(content: Any) -> str:
    return content if isinstance(content, str) else canonical_json(content)


_READERS: Mapping[str, Callable[[Trace, Event], None]] = {
    "tool_call": Trace._take_call,  # noqa: SLF001 - the table of its own methods
    "tool_output": Trace._take_output,  # noqa: SLF001
    "artifact": Trace._take_artifact,  # noqa: SLF001
    "error_event": Trace._take_error,  # noqa: SLF001
    "decision": Trace._take_decision,  # noqa: SLF001
    "process_end": Trace._take_end,  # noqa: SLF001
    "session_end": Trace._take_end,  # noqa: SLF001
}
