"""Dialects of traces: the names that are read, from the tables, and what came of each instrumentor that was run, from what it really sent."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from audit.policy import RedactionSettings
from audit.redaction import Redactor
from reference.markdown import code, page, table
from schemas.records import Span
from streams.sources.otlp import conventions
from streams.sources.otlp.conventions import TOKEN_CONVENTIONS, MessageAttribute, TokenConvention
from streams.sources.otlp.kinds import KINDS
from streams.sources.otlp.received import RejectedItem
from streams.sources.otlp.request import SIGNALS
from streams.sources.otlp.stored_spans import SpanOwner, build_span_record
from streams.sources.otlp.trace import SESSION_FROM_TRACE
from streams.sources.otlp.trace_records import Assembly, Decision, assemble

Json = dict[str, Any]
CAPTURES = Path(__file__).parents[3] / "tests/otlp/captures"
_NOW = datetime(2027, 11, 26, tzinfo=UTC)
"""When the spans come: later than all captures, as what lies in the future is refused."""
_REDACTOR = Redactor(RedactionSettings())
_FIELDS: Mapping[str, Sequence[str | MessageAttribute]] = {
    "session": conventions.SESSION,
    "agent": conventions.AGENT,
    "model": conventions.MODEL,
    "messages sent": conventions.REQUEST_MESSAGES,
    "messages that came back": conventions.RESPONSE_MESSAGES,
    "a whole conversation": conventions.CONVERSATIONS,
    "tool": conventions.TOOL,
    "arguments": conventions.ARGUMENTS,
    "output of a tool": conventions.RESULT,
    "descriptions of tools, if the policy says so": (*conventions.TOOL_DEFINITIONS, conventions.TOOL_DEFINITION.format("N")),
    "why it stopped": conventions.STOP_REASON,
    "error": conventions.ERROR,
}
_SHAPES = {"json": "", "flat": ".N.…", "text": "", "tasks": ""}


def dialects() -> str:
    """Return the page."""
    return page(
        "Dialects of traces",
        "What is read of spans. [Connect OpenTelemetry](../how-to/opentelemetry.md) has the lines for each framework.",
        "## Instrumentors that were run",
        "Each was run for real against a stand-in of its provider, with questions, calls of tools and a tool that fails; those outside of "
        "`frameworks/` also with a request that is refused, and some with thinking. The table says what of it is in the records: `some` where a "
        "part of them has it. What is missing is missing in the bytes, or the sender was told to leave it out.",
        table(
            ("capture", "instrumentation scopes", *(field.replace("_", " ") for field in _Read._fields)),
            [
                (code(path.relative_to(CAPTURES).with_suffix("")), _scopes(path), *_read(path))
                for path in sorted(CAPTURES.rglob("*.jsonl"))
            ],
        ),
        "## What a span is",
        "The first of these attributes whose value is known decides, in any case of letters; a span without one is known by what it has.",
        table(
            ("dialect", "attribute", "value", "is read as"),
            [
                (dialect, code(attribute), ", ".join(map(code, values)), kind)
                for dialect, attribute, kinds in KINDS
                for kind, values in _by_kind(kinds)
            ],
        ),
        "## Names",
        "The first that has anything is read: for messages, arguments and outputs as text, lists of text, objects or JSON, in the shape of any "
        "provider. Beside attributes, events tell messages (`gen_ai.*.message`, `gen_ai.choice`, `gen_ai.content.*`, also with the whole of it in "
        "`gen_ai.event.content` or `body`), and records of a log with these names, whose body may be JSON.",
        table(
            ("field", "attributes"),
            [(field, ", ".join(code(_name(name)) for name in names)) for field, names in _FIELDS.items()],
        ),
        "## How tokens are counted",
        "`input_tokens` of a record are all that the model read, those from and for a cache included; `output_tokens` are all that it wrote, "
        "reasoning included. The conventions say it in different ways: a count of input includes the cached tokens, or they stand beside it. "
        "Of a span with several the one with the most counts is read. Where a total contradicts the convention, it decides if exactly one "
        "reading fits it; else the exchange is tagged `unclear_tokens`, and what depends on the reading is empty.",
        table(
            (
                "dialect",
                "within",
                "cached tokens are",
                "reasoning is",
                "input",
                "output",
                "cache read",
                "cache write",
                "reasoning",
                "total",
            ),
            map(_counting, TOKEN_CONVENTIONS),
        ),
    )


class _Read(NamedTuple):
    """What the records of a capture have."""

    session: str
    agent: str
    question: str
    answer: str
    thinking: str
    calls: str
    outputs: str
    failed_tools: str
    tokens: str
    cached: str
    errors: str


def _read(capture: Path) -> _Read:
    assemblies = list(_assembled(capture))
    exchanges = [exchange for assembly in assemblies for exchange in assembly.exchanges]
    answered = [exchange for exchange in exchanges if exchange.outcome != "error"]
    payloads = [json.loads(event.payload) for assembly in assemblies for event in assembly.events]
    calls, outputs, usages, errors = (
        [payload for payload in payloads if payload["event"] == kind]
        for kind in ("tool_call", "tool_output", "token_usage", "error_event")
    )
    counted = [one for one in answered if one.input_tokens and one.output_tokens]
    return _Read(
        session=_share(exchanges, [one for one in exchanges if SESSION_FROM_TRACE not in one.tags]),
        agent=_share(exchanges, [one for one in exchanges if one.agent]),
        question=_share(exchanges, [one for one in exchanges if one.user_message]),
        answer=_share(answered, [one for one in answered if one.agent_response]),
        thinking=_any(one.agent_thinking for one in exchanges),
        calls=_share(calls, [one for one in calls if one.get("arguments") is not None]),
        outputs=_share(calls, outputs),
        failed_tools=_any(one.get("is_error") for one in outputs),
        tokens=_share(answered, counted) if exchanges else _any(usages),
        cached=_any(usage["usage"].get("cache_read") for usage in usages),
        errors=_any([*errors, *(one for one in exchanges if one.outcome == "error")]),
    )


def _assembled(capture: Path) -> Iterator[Assembly]:
    """Return the traces of a capture, read as a server reads them."""
    traces: dict[str, dict[str, Span]] = {}
    for line in _lines(capture):
        for observed in SIGNALS[line["signal"]].read(json.dumps(line["request"]).encode(), _NOW, is_json=True):
            if observed is not None and not isinstance(observed, RejectedItem):
                record = build_span_record(observed, SpanOwner("dialects", "docs"), _REDACTOR, _NOW, {})
                traces.setdefault(record.trace_id, {})[record.span_id] = record
    return (assemble(list(spans.values()), Decision("settled", _NOW)) for spans in traces.values())


def _lines(capture: Path) -> Iterator[Json]:
    return map(json.loads, capture.read_text("utf-8").splitlines())


def _any(values: Iterable[Any]) -> str:
    return "yes" if any(values) else "no"


def _share(whole: Sequence[Any], part: Sequence[Any]) -> str:
    return "no" if not part else "yes" if len(part) >= len(whole) else "some"


def _scopes(capture: Path) -> str:
    """Return the scopes that a capture's spans and logs are of, with their versions."""
    scopes: set[str] = set()
    for line in _lines(capture):
        for group in _values(line["request"], "resourceSpans", "resourceLogs"):
            for scoped in _values(group, "scopeSpans", "scopeLogs"):
                scope = scoped.get("scope", {})
                scopes.add(" ".join(filter(None, (scope.get("name"), scope.get("version")))))
    return ", ".join(map(code, sorted(filter(None, scopes))))


def _values(holder: Json, *names: str) -> Iterator[Json]:
    for name in names:
        yield from holder.get(name, ())


def _by_kind(kinds: Mapping[str, str]) -> Iterable[tuple[str, list[str]]]:
    by_kind: dict[str, list[str]] = {}
    for value, kind in kinds.items():
        by_kind.setdefault(kind, []).append(value)
    return by_kind.items()


def _name(name: str | MessageAttribute) -> str:
    return name if isinstance(name, str) else name.name + _SHAPES[name.shape]


def _counting(one: TokenConvention) -> tuple[str, ...]:
    counts = (one.input, one.output, one.cache_read, one.cache_write, one.reasoning, one.total)
    parts = one.parts or ("", "")
    others = [f", `{beginning}…`" if beginning else "" for beginning in parts]
    cells = [", ".join(map(code, names)) for names in counts]
    return (
        one.dialect,
        code(one.container or ""),
        one.cache_is,
        one.reasoning_is,
        cells[0] + others[0],
        cells[1] + others[1],
        *cells[2:],
    )
