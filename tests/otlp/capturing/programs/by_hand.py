"""What the agents have in common that are written by hand: how they call their tools, and the conversation that they have."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from programs import scenario

CallTool = Callable[[str, str, dict[str, Any]], str]
"""Calls a tool by the call's id, the tool's name and the arguments; an error is what the tool raises."""


def plain_call(_call_id: str, name: str, arguments: dict[str, Any]) -> str:
    """Call a tool without a span."""
    return scenario.TOOLS[name](**arguments)


def output_of(call_tool: CallTool, call_id: str, name: str, arguments: dict[str, Any]) -> str:
    """What the model is sent of a call: a tool that fails says so in words."""
    try:
        return call_tool(call_id, name, arguments)
    except ValueError as error:
        return f"Error: {error}"


def talk(begin: Callable[[], Any], turn: Callable[..., object], refusal: type[Exception]) -> None:
    """Have two turns of one session, the second streamed, and a refused one of another.

    `begin` begins a session, `turn` takes it, its id and a question, `refusal` is what a client raises when the provider refuses.
    """
    session = begin()
    turn(session, scenario.SESSION, scenario.WEATHER)
    turn(session, scenario.SESSION, scenario.BOAT, stream=True)
    with suppress(refusal):
        turn(begin(), scenario.REFUSED_SESSION, scenario.REFUSED)
