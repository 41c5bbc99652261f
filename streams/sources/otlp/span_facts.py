"""Facts of a span: what Driftline keeps of it, whichever conventions its attributes follow.

A span is kept as these facts from the moment it comes in, as JSON: the rest of it, such as the history that is sent with every call of a
model, is not stored.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Kind = Literal["agent", "chain", "inference", "tool", "retrieval", "memory", "helper", "evaluation", "log", "other"]
"""What a span is: `agent` and `chain` enclose an exchange, `inference` is one request to a model, `helper` serves a turn without being part
of what is said in it (a guardrail, an evaluator, an embedding), `evaluation` is a run of a platform's evaluator or experiment and no agent's, `log` adds to
another span."""


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True):
    """A call of a tool, from a message or a span."""

    name: str | None = None
    call_id: str | None = None
    arguments: Any = None


class ToolResult(msgspec.Struct, frozen=True, omit_defaults=True):
    """The answer of a tool. `is_error` is null where no span or message says."""

    output: str
    name: str | None = None
    call_id: str | None = None
    is_error: bool | None = None


class Usage(msgspec.Struct, frozen=True, omit_defaults=True):
    """Tokens of a request: those read include those from and for a cache, those written include reasoning."""

    input: int | None = None
    output: int | None = None
    cache_read: int | None = None
    cache_write: int | None = None


class Rating(msgspec.Struct, frozen=True, omit_defaults=True):
    """A verdict of an evaluation by others."""

    name: str
    score: float | None = None
    label: str | None = None
    explanation: str | None = None
    response_id: str | None = None


class SpanFacts(msgspec.Struct, frozen=True, omit_defaults=True):
    """The facts of one span. A missing fact is None or empty.

    `question` is the last message of a user among those sent, `answer` and `thinking` are of the first choice that came back. `calls` are
    the tool calls that this choice asks for, `results` the outputs of tools that end what was sent. `called` and `returned` are of a span
    that is itself a call of a tool.
    """

    kind: Kind
    name: str = ""
    dialect: str = ""
    scope: str | None = None
    unknown: str | None = None
    """What the span says of its kind where that was not understood: `attribute = value`."""
    serves: bool = False
    """It is the call of a server, or the handling of a message of a queue."""
    is_served_call: bool = False
    """It is the call of a tool, as the server of the tool tells it."""
    session_id: str | None = None
    agent: str | None = None
    service: str | None = None
    question: str | None = None
    asked: int = 0
    """Messages of the user among those that were sent: a later turn of a conversation sends more."""
    answer: str | None = None
    thinking: str | None = None
    choices: int = 0
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
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
    """Share of traces that the sender keeps, as its trace state tells."""
