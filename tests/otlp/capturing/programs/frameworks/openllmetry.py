"""Traceloop's SDK: its decorators for agent and tool, its instrumentation of the OpenAI client."""

from __future__ import annotations

import json
from typing import Any

from openai import OpenAI
from programs import numbers
from traceloop.sdk import Traceloop
from traceloop.sdk.decorators import agent, tool

TOOL = {
    "type": "function",
    "function": {
        "name": "double",
        "description": "Double a number.",
        "parameters": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
    },
}
double = tool(name="double")(numbers.double)


@agent(name=numbers.AGENT)
def answer(question: str, messages: list[Any]) -> str:
    """One invocation of the agent."""
    messages.append({"role": "user", "content": question})
    while True:
        message = OpenAI().chat.completions.create(model=numbers.MODEL, messages=messages, tools=[TOOL]).choices[0].message
        messages.append(message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"}))
        for call in message.tool_calls or ():
            try:
                content = double(**json.loads(call.function.arguments))
            except ValueError as error:
                content = f"Error: {error}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": content})
        if not message.tool_calls:
            return str(message.content)


if __name__ == "__main__":
    Traceloop.init(app_name="numbers-service", disable_batch=True)
    Traceloop.set_association_properties({"session_id": numbers.SESSION})
    conversation: list[Any] = [{"role": "system", "content": numbers.INSTRUCTIONS}]
    for asked in numbers.QUESTIONS:
        answer(asked, conversation)
