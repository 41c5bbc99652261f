"""The facts that Driftline stores of a span, independent of the conventions that its attributes follow.

They are stored as JSON. Anything else, such as the history that is sent with each request to a model, is not stored.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Kind = Literal["agent", "chain", "inference", "tool", "retrieval", "memory", "helper", "evaluation", "log", "other"]
"""Kind of a span. `agent` and `chain` enclose an exchange. `inference` is one request to a model. `helper` serves a turn without being part of
the conversation (a guardrail, an evaluator, an embedding). `evaluation` is a run of a platform's evaluator or experiment. `log` is a log record
that completes another span."""


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool call in a message or a span."""

    name: str | None = None
    call_id: str | None = None
    arguments: Any = None


class ToolResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """A tool result. `is_error` is None if neither the span nor the message tells whether the tool failed."""

    output: str
    name: str | None = None
    call_id: str | None = None
    is_error: bool | None = None


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """The token counts of a request. Input includes cache reads and writes, output includes reasoning."""

    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None


class Rating(msgspec.Struct, frozen=True, omit_defaults=True):
    """A rating by an external evaluation."""

    name: str
    score: float | None = None
    label: str | None = None
    explanation: str | None = None
    response_id: str | None = None


class SpanFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts of one span. A missing fact is None or empty.

    `question` is the last user message that was sent. `answer`, `thinking` and `calls` belong to the first choice that was returned. `results`
    are the tool outputs at the end of the sent messages. `called` and `returned` belong to a span that is itself a tool call.
    """

    kind: Kind
    name: str = ""
    dialect: str = ""
    scope: str | None = None
    unknown: str | None = None
    """`attribute = value` of a kind that was not understood."""
    serves: bool = False
    """True if the span handles a server call or a queue message."""
    is_served_call: bool = False
    """True if the span is a tool call reported by the server of the tool."""
    session_id: str | None = None
    agent: str | None = None
    service: str | None = None
    question: str | None = None
    asked: int = 0
    """Number of user messages among those sent. Later turns of a conversation send more."""
    answer: str | None = None
    thinking: str | None = None
    choices: int = 0
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    definitions: dict[str, str] = {}
    """Digests of the descriptions of the tools that were sent, by name; read only if the project's policy says so."""
    called: ToolCall | None = None
    returned: ToolResult | None = None
    model: str | None = None
    response_id: str | None = None
    usage: Usage | None = None
    stop_reason: str | None = None
    error: str | None = None
    compacted: bool = False
    memory: str | None = None
    labels: dict[str, str] = {}
    tags: tuple[str, ...] = ()
    ratings: tuple[Rating, ...] = ()
    probability: float | None = None
    """Share of traces that the sender keeps, according to the trace state."""
