"""The way in which the agents that are written by hand call their tools."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from programs import scenario

CallTool = Callable[[str, str, dict[str, Any]], str]
"""Calls a tool by the call's id, the tool's name and the arguments; an error is what the tool raises."""


def plain_call(_call_id: str, name: str, arguments: dict[str, Any]) -> str:
    """Call a tool without telling anybody."""
    return scenario.TOOLS[name](**arguments)


def output_of(call_tool: CallTool, call_id: str, name: str, arguments: dict[str, Any]) -> str:
    """What the model is sent of a call: a tool that fails says so in words."""
    try:
        return call_tool(call_id, name, arguments)
    except ValueError as error:
        return f"Error: {error}"
