"""Dialects of traces: the names that are read, from the tables, and what came of each instrumentor that was run, from what it really sent."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from reference.markdown import code, page, table
from streams.sources.otlp import conventions
from streams.sources.otlp.conventions import COUNTING, Counting, Place
from streams.sources.otlp.kinds import KINDS
from streams.sources.otlp.traces.trace import SESSION_FROM_TRACE

Json = dict[str, Any]
CAPTURES, GOLDENS = (Path(__file__).parents[3] / "tests/otlp" / folder for folder in ("captures", "goldens"))
_FIELDS: Mapping[str, Sequence[str | Place]] = {
    "session": conventions.SESSION,
    "agent": conventions.AGENT,
    "model": conventions.MODEL,
    "messages sent": conventions.SENT,
    "messages that came back": conventions.CAME,
    "a whole conversation": conventions.WHOLE,
    "tool": conventions.TOOL,
    "arguments": conventions.ARGUMENTS,
    "output of a tool": conventions.RESULT,
    "why it stopped": conventions.STOP,
    "error": conventions.ERROR,
}
_SHAPES = {"json": "", "flat": ".N.…", "text": "", "tasks": ""}


def dialects() -> str:
    """The page."""
    return page(
        "Dialects of traces",
        "What is read of spans. [Connect OpenTelemetry](../how-to/opentelemetry.md) has the lines for each framework.",
        "## Instrumentors that were run",
        "Each was run for real against a stand-in of its provider, with questions, calls of tools, a tool that fails and a request that is "
        "refused. The table says what of it is in the records: `some` where a part of the requests has it, `no` where none has. What is "
        "missing here is missing in the bytes, or the instrumentor was told to leave it out.",
        table(
            ("capture", "instrumentation scopes", *(field.replace("_", " ") for field in _Read._fields)),
            [
                (code(path.relative_to(GOLDENS).with_suffix("")), _scopes(path), *_read(json.loads(path.read_text("utf-8"))))
                for path in sorted(GOLDENS.rglob("*.json"))
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
        "`gen_ai.event.content`), and records of a log with these names, whose body may be JSON.",
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
            map(_counting, COUNTING),
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


def _read(traces: Sequence[Json]) -> _Read:
    exchanges = [exchange for trace in traces for exchange in trace["exchanges"]]
    answered = [exchange for exchange in exchanges if exchange["outcome"] != "error"]
    events = [event for trace in traces for event in trace["events"]]
    kinds = Counter(event["event"] for event in events)
    calls = [event for event in events if event["event"] == "tool_call"]
    outputs = [event for event in events if event["event"] == "tool_output"]
    usages = [event["usage"] for event in events if event["event"] == "token_usage"]
    return _Read(
        session=_share(exchanges, [one for one in exchanges if SESSION_FROM_TRACE not in one.get("tags", ())]),
        agent=_share(exchanges, [one for one in exchanges if one.get("agent")]),
        question=_share(exchanges, [one for one in exchanges if one.get("user_message")]),
        answer=_share(answered, [one for one in answered if one.get("agent_response")]),
        thinking="yes" if any(one.get("agent_thinking") for one in exchanges) else "no",
        calls=_share(calls, [one for one in calls if one.get("arguments")]),
        outputs=_share(calls, outputs),
        failed_tools="yes" if any(one.get("is_error") for one in outputs) else "no",
        tokens=_share(answered, [one for one in answered if one.get("input_tokens") and one.get("output_tokens")])
        if exchanges
        else _share(usages, usages),
        cached="yes" if any(usage.get("cache_read") for usage in usages) else "no",
        errors="yes" if kinds["error_event"] or any(one["outcome"] == "error" for one in exchanges) else "no",
    )


def _share(whole: Sequence[Any], part: Sequence[Any]) -> str:
    return "no" if not part else "yes" if len(part) >= len(whole) else "some"


def _scopes(golden: Path) -> str:
    """The scopes that a capture's spans and logs are of, with their versions."""
    capture = CAPTURES / golden.relative_to(GOLDENS).with_suffix(".jsonl")
    scopes: set[str] = set()
    for line in capture.read_text("utf-8").splitlines():
        for group in _values(json.loads(line)["request"], "resourceSpans", "resourceLogs"):
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


def _name(name: str | Place) -> str:
    return name if isinstance(name, str) else name.name + _SHAPES[name.shape]


def _counting(one: Counting) -> tuple[str, ...]:
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
