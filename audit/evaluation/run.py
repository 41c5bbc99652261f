"""A finished run for evaluation, folded from the records of its session. Pure: the same records give the same run.

1. Abandoned exchanges and their events are not part of the run, but their cost is. Heartbeats are not turns if there are others.
2. The run ends with the outcome of its last exchange. Without exchanges, events may give the final answer and the status.
3. A failure is an error that was not resolved, an end in an error, or a cause that the diagnosis names.
4. Identifiers are collected as exact text, to be removed from the judge's view. Short common words are left out: otherwise a
   connection called `local` would remove that word from every answer.

What each event becomes:

| event | becomes |
| --- | --- |
| tool_call | a call |
| tool_output | a result; without a tool's name, the tool is that of the call with its tool_call_id |
| artifact | the artifact of its path, with the last content; a deletion removes it |
| error_event | a failure, unless it is resolved |
| process_end | the final answer and status of a run without exchanges; a failure if it ended badly |
| session_end, decision | the final answer and status of a run without exchanges |

An error is resolved if the run continued. An error of a tool is resolved by a later successful result of that tool. Any other error is
resolved by a later tool call, successful result, artifact or decision, or by an answer to its exchange or a later one. An error marked
`recovered` is not a failure.

Tokens and costs are never guessed; unknown values are None:

1. Every exchange counts, also abandoned ones, because they were paid for. An exchange that no model answered used nothing.
2. Tokens are those of the exchanges if all of them report tokens, else those of the token_usage events if all of those do.
3. The cost is that of the token_usage events if they report at least as many tokens as the exchanges, because they distinguish tokens
   from the prompt cache; else that of the exchanges, with all input at the full price; else what the source itself reported.
"""

from __future__ import annotations

import math
import posixpath
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import lru_cache
from typing import Any, Literal, get_args

from audit.cost import ModelPrice, Usage, price_of, usd_of
from audit.diagnosis.events import MAX_TOKENS, call_arguments, token_total, tool_name
from audit.exchanges.tier1 import check_structure
from audit.failures import FAILED_STATUSES
from audit.fingerprints import canonical_json
from audit.policy import Methodology
from audit.times import parse_timestamp
from schemas.bounds import MAX_DEPTH
from schemas.records import Exchange, FailureCause

Status = Literal["answered", "no_response", "error", "aborted"]
"""The outcome of the last exchange of a run."""
_OUTCOMES: frozenset[str] = frozenset(get_args(Status))
_END_MESSAGES: Mapping[Status, str] = {"error": "The run ended in an error.", "aborted": "The run was aborted."}
Event = Mapping[str, Any]
_DRIVE = re.compile(r"[A-Za-z]:/")
_OUTPUT_FIELDS = ("result", "output", "content", "text", "response", "data", "stdout", "message")
_CONTENT_FIELDS = ("content", "excerpt", "text")
_PATH_FIELDS = ("path", "file_path", "file", "filename", "name")
_FINAL_FIELDS = (
    "final_response",
    "response",
    "answer",
    "output",
    "result",
    "text",
    "message",
    "content",
    "decision",
    "summary",
)
_MESSAGE_FIELDS = ("message", "error", "errorMessage", "reason", "text", "description", "detail")
_CALL_ID_FIELDS = ("tool_call_id", "call_id")
_EXIT_CODE_FIELDS = ("exit_code", "exitCode", "returncode", "return_code")
_DELETE_ACTIONS = frozenset({"delete", "deleted", "remove", "removed"})
_STATUSES: Mapping[str, Status] = {
    **dict.fromkeys(("answered", "ok", "success", "succeeded", "completed", "complete", "done", "finished"), "answered"),
    **dict.fromkeys(FAILED_STATUSES, "error"),
    **dict.fromkeys(("aborted", "abort", "cancelled", "canceled", "killed", "interrupted", "stopped"), "aborted"),
    "no_response": "no_response",
}
MAX_LENGTH = 500
"""Maximum length of a value that may be a name."""
_MIN_NAME_LENGTH, _MIN_WORD_LENGTH = 4, 12
"""Minimum lengths of a name, and of a name of letters only."""
_MIN_ID = 10_000
"""Minimum of an integer that may be an id; smaller ones are often counts or ports."""
_NESTED_NAME_FIELDS = frozenset({"id", "name", "path", "address", "ip", "digest"})
"""Fields that hold the name if a well-known field holds an object."""
# fmt: off
KEYS = frozenset({
    "sessionid", "sessionkey", "exchangeid", "eventid", "entryid", "toolcallid", "tooluseid", "callid", "firstkeptentryid",
    "parentid", "runid", "requestid", "responseid", "messageid", "traceid", "spanid", "parentspanid", "correlationid",
    "conversationid", "threadid", "jobid", "buildid", "taskid", "host", "hostname", "hostip", "server", "machine",
    "machineid", "node", "nodename", "pod", "podname", "podip", "instance", "instanceid", "cluster", "container",
    "containerid", "containername", "image", "imageid", "imagename", "imagedigest", "dockerimage", "cwd", "workdir",
    "workingdirectory", "workspace", "workspacedir", "workspacepath", "homedir", "tempdir", "tmpdir", "sessionfile",
    "transcriptpath",
})
# fmt: on
"""Fields whose values are names of infrastructure; lower case, letters only."""
_NOT_A_LETTER = re.compile(r"[^a-z]")
_NON_LETTER = re.compile(r"[^A-Za-z]")
_GENERATED_ID = re.compile(r"event_\d+(#\d+)?")
"""Generated ids of events without one, which identify nothing."""
_INPUT_TOKENS = ("input", "input_tokens", "prompt_tokens")
_OUTPUT_TOKENS = ("output", "output_tokens", "completion_tokens")
_CACHE_READ = ("cache_read", "cache_read_tokens", "cache_read_input_tokens")
_CACHE_WRITTEN = ("cache_write", "cache_write_tokens", "cache_creation_input_tokens")


@dataclass(frozen=True, slots=True)
class Turn:
    """A user's message and the agent's answer, with texts as recorded."""

    user_message: str
    agent_response: str
    status: Status


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool."""

    tool: str | None
    arguments: Any
    """Plain JSON; None without arguments."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool call."""

    tool: str | None
    output: Any
    """Plain JSON, usually a text."""
    failed: bool


@dataclass(frozen=True, slots=True)
class Failure:
    """An error of the run that nothing afterwards resolved."""

    kind: str
    """Type of the event, or the failure type of the diagnosis."""
    words: str


@dataclass(frozen=True, slots=True)
class Artifact:
    """A file that the run created or changed, as far as events recorded it."""

    path: str
    excerpt: str
    """The last recorded content; may be empty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A finished session as a case evaluates it. Identifiers are listed so that they can be kept out of the prompt."""

    connection: str
    project: str
    session_id: str
    agent: str | None
    model: str | None
    """The agent's model, from its last answer that names one."""
    identifiers: frozenset[str]
    """Ids of the session, its exchanges and events, and names of machines; none of them may reach the judge."""
    turns: tuple[Turn, ...]
    steps: tuple[ToolCall | ToolResult, ...]
    """Calls and results in the order of the log."""
    failures: tuple[Failure, ...]
    artifacts: tuple[Artifact, ...]
    status: Status
    trust: int | None
    """Trust score of the diagnosis; None without evidence."""
    input_tokens: int | None
    """None means missing, not zero."""
    output_tokens: int | None
    cost_usd: float | None
    """None if a price is unknown."""
    started_at: datetime | None
    ended_at: datetime | None
    reported_tokens: int | None = None
    """Tokens read and written, if only their sum is known."""
    has_events: bool = True
    """True if any event was recorded; without events, tools and artifacts are unknown."""
    is_whole: bool = True
    """True if all records of the session are included. A very long session is read in part, and its spending is unknown."""
    tier1_flags: frozenset[str] | None = None
    """The checks of Tier 1 that flag one of its exchanges; None if they were not run."""

    @property
    def final_response(self) -> str:
        """The last answer; empty without one."""
        return self.turns[-1].agent_response if self.turns else ""

    @property
    def total_tokens(self) -> int | None:
        """Tokens read and written; None if unknown."""
        if self.input_tokens is None or self.output_tokens is None:
            return self.reported_tokens
        return self.input_tokens + self.output_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRecords:
    """The newest version of each record of one session."""

    connection: str
    project: str
    session_id: str
    exchanges: Sequence[Exchange]
    """In any order."""
    events: Sequence[Mapping[str, Any]]
    """Payloads of its AgentEvents, in order of the log."""
    trust: int | None = None
    """Trust score of the diagnosis; None without evidence."""
    failure_causes: Sequence[FailureCause] = ()
    """The findings of the diagnosis."""
    closed_at: datetime | None = None
    """The end of the session, if known."""
    is_whole: bool = True
    """True if these are all its exchanges and events."""
    methodology: Methodology | None = None
    """The methodology whose checks of Tier 1 are run on its exchanges; None: none are."""


def run_of(session: SessionRecords, prices: Mapping[str, ModelPrice]) -> Run:
    """Fold the records of a session into a run; `prices` override the shipped prices of models."""
    exchanges = sorted(
        session.exchanges, key=lambda exchange: (exchange.occurred_at, exchange.turn_number or 0, exchange.exchange_id)
    )
    abandoned = {exchange.exchange_id for exchange in exchanges if "abandoned" in exchange.tags}
    active = [exchange for exchange in exchanges if exchange.exchange_id not in abandoned]
    # An event's exchange_id may be any JSON value, also an unhashable one.
    trace = trace_of(event for event in session.events if str(event.get("exchange_id")) not in abandoned)
    turns = _build_turns(active, trace)
    status = turns[-1].status if turns else trace.final_status or "no_response"
    model = _find_last_text([exchange.agent_model for exchange in active]) or _find_last_text(
        _list_text_values(session.events, "model")
    )
    spending = spending_of(exchanges, session.events, model, prices) if session.is_whole else UNKNOWN
    times = [*(exchange.occurred_at for exchange in exchanges), *filter(None, (trace.first_at, trace.last_at))]
    return Run(
        connection=session.connection,
        project=session.project,
        session_id=session.session_id,
        agent=_find_last_text([exchange.agent for exchange in exchanges])
        or _find_last_text(_list_text_values(session.events, "agent")),
        model=model,
        identifiers=identifiers_of(session.connection, session.session_id, exchanges, session.events),
        turns=turns,
        steps=tuple(trace.steps),
        failures=tuple(_collect_failures(session, trace, active, status)),
        artifacts=tuple(trace.artifacts.values()),
        status=status,
        trust=session.trust,
        input_tokens=spending.input_tokens,
        output_tokens=spending.output_tokens,
        reported_tokens=spending.reported_tokens,
        cost_usd=spending.cost_usd,
        started_at=min(times, default=None),
        ended_at=max(times, default=session.closed_at),
        has_events=bool(session.events),
        is_whole=session.is_whole,
        tier1_flags=_find_flags(active, session.methodology),
    )


def _find_flags(active: Sequence[Exchange], methodology: Methodology | None) -> frozenset[str] | None:
    if methodology is None:
        return None
    checked = (check_structure(exchange.user_message, exchange.agent_response, methodology) for exchange in active)
    return frozenset(flag for result in checked for flag in result.flags)


def trace_of(events: Iterable[Event]) -> Trace:
    """Return the trace of events in order."""
    trace = Trace()
    for event in events:
        trace.take(event)
    return trace


def _build_turns(active: Sequence[Exchange], trace: Trace) -> tuple[Turn, ...]:
    turns_of_user = [exchange for exchange in active if "heartbeat" not in exchange.tags] or active
    turns = tuple(Turn(exchange.user_message, exchange.agent_response, _find_status(exchange)) for exchange in turns_of_user)
    if turns or not trace.final_text:
        return turns
    return (Turn("", trace.final_text, trace.final_status or "answered"),)


def _find_status(exchange: Exchange) -> Status:
    """Return the outcome of an exchange; newer sources may have outcomes that are unknown here."""
    if exchange.outcome in _OUTCOMES:
        return exchange.outcome  # type: ignore[return-value]
    return "answered" if exchange.agent_response.strip() else "no_response"


def _find_last_text(values: Sequence[str | None]) -> str | None:
    """Return the last text that is not blank."""
    return next((value for value in reversed(values) if value and value.strip()), None)


def _list_text_values(events: Sequence[Mapping[str, Any]], name: str) -> list[str | None]:
    values = [event.get(name) for event in events]
    return [value for value in values if isinstance(value, str)]


def spending_of(
    exchanges: Sequence[Exchange], events: Iterable[Mapping[str, Any]], model: str | None, prices: Mapping[str, ModelPrice]
) -> Spending:
    """Sum the tokens and the cost of a run.

    `model` is used for parts that name none; `prices` override the shipped ones.
    """
    answers = [_read_exchange_usage(exchange, model) for exchange in exchanges if _was_answered(exchange)]
    calls = [_read_event_usage(event, model) for event in events if event.get("event") == "token_usage"]
    tokens = _sum_usage(answers) or _sum_usage(calls)
    reported = [part.reported for part in calls]
    return Spending(
        input_tokens=tokens.prompt_tokens if tokens else None,
        output_tokens=tokens.output_tokens if tokens else None,
        reported_tokens=sum(filter(None, reported)) if reported and None not in reported else None,
        cost_usd=_total_cost(answers, calls, prices),
    )


def _read_exchange_usage(exchange: Exchange, model: str | None) -> _UsageReport:
    input_tokens = exchange.input_tokens
    output_tokens = exchange.output_tokens
    usage = None if input_tokens is None or output_tokens is None else Usage(input_tokens, output_tokens)
    return _UsageReport(exchange.agent_model or model, usage)


@dataclass(frozen=True, slots=True)
class _UsageReport:
    """The usage of one exchange or token_usage event."""

    model: str | None
    usage: Usage | None
    reported: int | None = None
    cost_usd: float | None = None


def _was_answered(exchange: Exchange) -> bool:
    has_tokens = exchange.input_tokens is not None or exchange.output_tokens is not None
    return has_tokens or bool(exchange.agent_response.strip())


def _read_event_usage(event: Mapping[str, Any], model: str | None) -> _UsageReport:
    nested = event.get("usage")
    source = nested if isinstance(nested, Mapping) else event
    input_tokens = _find_first_number(source, _INPUT_TOKENS)
    output_tokens = _find_first_number(source, _OUTPUT_TOKENS)
    usage = None
    if input_tokens is not None and output_tokens is not None:
        usage = Usage(
            input_tokens,
            output_tokens,
            _find_first_number(source, _CACHE_WRITTEN) or 0,
            _find_first_number(source, _CACHE_READ) or 0,
        )
    model_name = event.get("model")
    cost = source.get("cost_usd")
    return _UsageReport(
        model_name if isinstance(model_name, str) and model_name else model,
        usage,
        token_total(event) if usage is None else usage.prompt_tokens + usage.output_tokens,
        float(cost) if (type(cost) is int or type(cost) is float) and 0 <= cost < MAX_TOKENS else None,
    )


def _find_first_number(source: Mapping[str, Any], names: Iterable[str]) -> int | None:
    """Return the first of these fields that is a non-negative number."""
    for name in names:
        value = source.get(name)
        if (type(value) is int or type(value) is float) and value >= 0:
            return int(min(value, MAX_TOKENS))
    return None


def _sum_usage(parts: Sequence[_UsageReport]) -> Usage | None:
    """Sum all tokens; None without reports, or if one of them lacks its tokens."""
    usages = [part.usage for part in parts if part.usage is not None]
    if not parts or len(usages) < len(parts):
        return None
    return Usage(sum(usage.prompt_tokens for usage in usages), sum(usage.output_tokens for usage in usages))


def _total_cost(
    answers: Sequence[_UsageReport], calls: Sequence[_UsageReport], prices: Mapping[str, ModelPrice]
) -> float | None:
    usage_of_answers = _sum_usage(answers)
    usage_of_calls = _sum_usage(calls)
    calls_are_complete = usage_of_calls is not None and (
        usage_of_answers is None or _read_token_count(usage_of_calls) >= _read_token_count(usage_of_answers)
    )
    if calls_are_complete:
        cost = _price_reports(calls, prices)
        if cost is not None:
            return cost
    cost = _price_reports(answers, prices)
    if cost is not None:
        return cost
    return _find_reported_cost(calls)


def _find_reported_cost(calls: Sequence[_UsageReport]) -> float | None:
    """Return the sum of the costs that the source reports; None if one is missing or all are 0."""
    costs = [call.cost_usd for call in calls if call.cost_usd is not None]
    if len(costs) < len(calls):
        return None
    # Sources report 0 for a model whose price they do not know.
    return math.fsum(costs) or None


def _read_token_count(usage: Usage) -> int:
    return usage.prompt_tokens + usage.output_tokens


def _price_reports(reports: Sequence[_UsageReport], prices: Mapping[str, ModelPrice]) -> float | None:
    """Return the cost of all reports in USD; None without any, or if the tokens or the price of one are unknown."""
    if not reports:
        return None
    costs = []
    for report in reports:
        price = price_of(report.model, prices) if report.model else None
        cost = price.cost(report.usage) if price is not None and report.usage is not None else None
        if cost is None:
            return None
        costs.append(cost)
    return usd_of(sum(costs))


def identifiers_of(
    connection: str, session_id: str, exchanges: Iterable[Exchange], events: Iterable[Mapping[str, Any]]
) -> frozenset[str]:
    """Return every identifier of a session; short values count only if they contain more than letters."""
    identifiers = {connection, session_id}
    for exchange in exchanges:
        identifiers.add(exchange.exchange_id)
    for event in events:
        identifiers.update(_list_known_values(event))
    return frozenset(name.strip() for name in identifiers if _is_specific(name.strip()))


def _list_known_values(event: Mapping[str, Any]) -> Iterator[str]:
    """Yield the values of the well-known fields of an event at every depth, level by level."""
    level: list[tuple[Any, bool]] = [(item, _is_key(field, within=False)) for field, item in event.items()]
    for _ in range(MAX_DEPTH + 1):
        next_level: list[tuple[Any, bool]] = []
        for value, is_name in level:
            if isinstance(value, dict):
                next_level += [(item, _is_key(field, within=is_name)) for field, item in value.items()]
            elif isinstance(value, list | tuple):
                next_level += [(item, is_name) for item in value]
            elif is_name and isinstance(value, str):
                yield value
            elif is_name and type(value) is int and _MIN_ID <= value < 2**63:
                yield str(value)
        if not next_level:
            return
        level = next_level


def _is_key(field: Any, *, within: bool) -> bool:
    key = _letters(field) if isinstance(field, str) and len(field) <= MAX_LENGTH else ""
    return key in KEYS or (within and key in _NESTED_NAME_FIELDS)


@lru_cache(maxsize=4096)
def _letters(field: str) -> str:
    """Return the letters of a field's name in lower case."""
    return _NOT_A_LETTER.sub("", field.lower())


def _is_specific(name: str) -> bool:
    has_size = _MIN_NAME_LENGTH <= len(name) <= MAX_LENGTH and "\n" not in name
    return (
        has_size
        and (len(name) >= _MIN_WORD_LENGTH or _NON_LETTER.search(name) is not None)
        and not _GENERATED_ID.fullmatch(name)
    )


def _collect_failures(session: SessionRecords, trace: Trace, active: Sequence[Exchange], status: Status) -> Iterator[Failure]:
    """Yield errors in order of the log, then a bad end without an error, then the causes of the diagnosis."""
    errors = [error.failure for error in _list_unresolved_errors(trace.errors, active)]
    yield from errors
    if status in _END_MESSAGES and not errors:
        yield Failure(status, _END_MESSAGES[status])
    yield from (Failure(cause.type, cause.description) for cause in session.failure_causes)


def _list_unresolved_errors(errors: Sequence[OpenError], active: Sequence[Exchange]) -> Iterator[OpenError]:
    """Yield the errors that no answer resolved: those of a tool, and those without an answer to their exchange or a later one.

    The exchange of an error is the one it names, else the last one that began before it, else the last one of all.
    """
    start_times = [exchange.occurred_at for exchange in active]
    indexes = {exchange.exchange_id: index for index, exchange in enumerate(active)}
    last_answer = max((index for index, exchange in enumerate(active) if _find_status(exchange) == "answered"), default=-1)
    for error in errors:
        earlier = len(active) if error.at is None else bisect_right(start_times, error.at)
        if error.tool is not None or last_answer < indexes.get(error.exchange_id or "", max(earlier - 1, 0)):
            yield error


def normalize_path(path: str) -> str:
    """Normalize a path: slashes only, without `./`, and without `..` after a folder."""
    return posixpath.normpath(path.strip().replace("\\", "/"))


def is_recorded_as(expected: str, recorded: str) -> bool:
    """Return whether an artifact's recorded path is the expected one; an absolute path matches by its end."""
    wanted_path = normalize_path(expected)
    recorded_path = normalize_path(recorded)
    is_absolute = recorded_path.startswith(("/", "~/")) or _DRIVE.match(recorded_path) is not None
    return wanted_path == recorded_path or (is_absolute and recorded_path.endswith("/" + wanted_path))


@dataclass(frozen=True, slots=True)
class OpenError:
    """An error that no event has resolved so far."""

    number: int
    """The number of the error among all errors."""
    tool: str | None
    exchange_id: str | None
    at: datetime | None
    failure: Failure


@dataclass(slots=True)
class Trace:
    """The steps, artifacts and errors of the events so far; `take` them in order of the log."""

    steps: list[ToolCall | ToolResult] = field(default_factory=list)
    artifacts: dict[str, Artifact] = field(default_factory=dict)
    """By normalized path."""
    final_text: str = ""
    final_status: Status | None = None
    first_at: datetime | None = None
    last_at: datetime | None = None
    _tools: dict[str, str | None] = field(default_factory=dict)
    _errors: dict[str | None, list[OpenError]] = field(default_factory=dict)
    """By tool, so that resolving errors takes constant time."""
    _error_count: int = 0

    def take(self, event: Event) -> None:
        """Add the next event; an event of another type only contributes its time."""
        time = _parse_time(event)
        if time is not None:
            self.first_at = time if self.first_at is None else min(time, self.first_at)
            self.last_at = time if self.last_at is None else max(time, self.last_at)
        reader = _READERS.get(_find_first_text(event, ("event",)))
        if reader is not None:
            reader(self, event)

    @property
    def errors(self) -> list[OpenError]:
        """The errors that no event resolved, in order of the log."""
        return sorted((error for errors in self._errors.values() for error in errors), key=lambda error: error.number)

    def _take_call(self, event: Event) -> None:
        tool = tool_name(event)
        call_id = _find_first_text(event, _CALL_ID_FIELDS)
        if call_id:
            self._tools[call_id] = tool
        self.steps.append(ToolCall(tool, call_arguments(event)))
        self._resolve_errors()

    def _take_output(self, event: Event) -> None:
        tool = tool_name(event) or self._tools.get(_find_first_text(event, _CALL_ID_FIELDS))
        failed = has_failed(event)
        output = _find_first_value(event, _OUTPUT_FIELDS)
        self.steps.append(
            ToolResult(tool, _find_first_value(event, ("error",)) if output is None and failed else output, failed)
        )
        if not failed:
            self._resolve_errors(tool)

    def _take_artifact(self, event: Event) -> None:
        path = _find_first_text(event, _PATH_FIELDS)
        if not path:
            return
        key = normalize_path(path)
        content = _find_first_value(event, _CONTENT_FIELDS)
        earlier = self.artifacts.pop(key, None)
        if _find_first_text(event, ("action",)).lower() not in _DELETE_ACTIONS:
            excerpt = earlier.excerpt if earlier else ""
            self.artifacts[key] = Artifact(path, excerpt if content is None else _read_content_text(content))
        self._resolve_errors()

    def _take_error(self, event: Event) -> None:
        if any(event.get(name) is True for name in ("recovered", "resolved", "handled")):
            return
        tool = _find_first_text(event, ("tool", "tool_name")) or None
        inner = event.get("error")
        message = (
            _find_first_text(event, _MESSAGE_FIELDS)
            or (_find_first_text(inner, _MESSAGE_FIELDS) if isinstance(inner, dict) else "")
            or _find_first_text(event, ("action", "status"))
            or "no message"
        )
        self._add_error(event, tool, Failure("error_event", f"{tool}: {message}" if tool else message))

    def _take_decision(self, event: Event) -> None:
        self._resolve_errors()
        self._take_end(event)

    def _take_end(self, event: Event) -> None:
        self.final_text = _find_first_text(event, _FINAL_FIELDS) or self.final_text
        code = _find_first_value(event, _EXIT_CODE_FIELDS)
        status = _STATUSES.get(_find_first_text(event, ("status", "outcome", "tool_status")).lower())
        self.final_status = status or ("error" if has_failed(event) else self.final_status)
        if event.get("event") == "process_end" and has_failed(event):
            message = f"ended with exit code {code}" if type(code) is int and code.bit_length() < 64 else "ended in an error"
            self._add_error(event, None, Failure("process_end", message))

    def _resolve_errors(self, tool: str | None = None) -> None:
        """Resolve all errors without a tool, and those of this tool."""
        self._errors.pop(None, None)
        self._errors.pop(tool, None)

    def _add_error(self, event: Event, tool: str | None, failure: Failure) -> None:
        error = OpenError(
            self._error_count, tool, _find_first_text(event, ("exchange_id",)) or None, _parse_time(event), failure
        )
        self._errors.setdefault(tool, []).append(error)
        self._error_count += 1


def _parse_time(event: Event) -> datetime | None:
    try:
        return parse_timestamp(event.get("timestamp"))
    except ValueError:
        return None


def _find_first_text(event: Event, names: Iterable[str]) -> str:
    """Return the first of these fields that is a text and not blank; empty without any."""
    for name in names:
        value = event.get(name)
        if isinstance(value, str) and value.strip():
            return value.strip()
    return ""


def has_failed(event: Event) -> bool:
    """Return whether a result or an end failed, by a flag, an error, an exit code or a status."""
    error = event.get("error")
    code = _find_first_value(event, _EXIT_CODE_FIELDS)
    if event.get("is_error") is True or error is True:
        return True
    if isinstance(error, str | dict) and error:
        return True
    if event.get("ok") is False or event.get("success") is False:
        return True
    if type(code) in {int, float} and code != 0:
        return True
    return any(_find_first_text(event, (name,)).lower() in FAILED_STATUSES for name in ("status", "tool_status"))


def _find_first_value(event: Event, names: Iterable[str]) -> Any:
    """Return the first of these fields that is not null."""
    for name in names:
        value = event.get(name)
        if value is not None:
            return value
    return None


def _read_content_text(content: Any) -> str:
    return content if isinstance(content, str) else canonical_json(content)


@dataclass(frozen=True, slots=True)
class Spending:
    """Tokens and USD of a run; None if unknown."""

    input_tokens: int | None
    output_tokens: int | None
    reported_tokens: int | None
    """Tokens read and written, as token_usage events report them."""
    cost_usd: float | None


_READERS: Mapping[str, Callable[[Trace, Event], None]] = {
    "tool_call": Trace._take_call,  # noqa: SLF001 - the table of its own methods
    "tool_output": Trace._take_output,  # noqa: SLF001
    "artifact": Trace._take_artifact,  # noqa: SLF001
    "error_event": Trace._take_error,  # noqa: SLF001
    "decision": Trace._take_decision,  # noqa: SLF001
    "process_end": Trace._take_end,  # noqa: SLF001
    "session_end": Trace._take_end,  # noqa: SLF001
}
UNKNOWN = Spending(None, None, None, None)
"""The spending of a run whose records are incomplete."""
