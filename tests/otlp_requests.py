"""Requests of OTLP for tests of the Collector's stage: spans of one's own in the requests of one service."""

from __future__ import annotations

from datetime import datetime, timedelta

from otlp.captured import Captured, Json
from otlp.spans import attributes, body, messages


def traces(*spans: Json, service: str | None = "checkout") -> Captured:
    """A request with spans of one service."""
    return Captured("traces", body(spans, {} if service is None else {"service.name": service}))


def turn(trace: int, at: datetime, *, session: str = "", **given: str) -> Json:
    """The span of an agent that answers one question."""
    said = {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "clerk",
        "gen_ai.conversation.id": session or f"session-{trace}",
        "gen_ai.input.messages": messages("user", f"Where is order {trace}?"),
        "gen_ai.output.messages": messages("assistant", f"Order {trace} left the depot this morning."),
    }
    return {
        "traceId": f"{trace:032x}",
        "spanId": f"{trace:016x}",
        "name": "invoke_agent clerk",
        "startTimeUnixNano": nanoseconds(at),
        "endTimeUnixNano": nanoseconds(at + timedelta(seconds=1)),
        "attributes": attributes({**said, **given}),
    }


def nanoseconds(at: datetime) -> str:
    """A time as OTLP's JSON has it."""
    return f"{int(at.timestamp())}000000000"
