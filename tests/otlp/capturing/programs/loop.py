"""An agent as people write it by hand over the OpenAI client: ask, call the tools that were asked for, ask again."""

from __future__ import annotations

import json
from typing import Any

from openai import OpenAI
from programs import scenario
from programs.by_hand import CallTool, output_of, plain_call


class Conversation:
    """The messages of one session, which are sent again with every question."""

    def __init__(self, call_tool: CallTool = plain_call, client: OpenAI | None = None) -> None:
        # Not tried again: a refused question is asked once.
        self._client = client or OpenAI(max_retries=0)
        self._call_tool = call_tool
        self._tools = [{"type": "function", "function": schema} for schema in scenario.function_schemas()]
        self.messages: list[Any] = [{"role": "system", "content": scenario.SYSTEM}]

    def turn(self, question: str, *, stream: bool = False) -> str:
        """The answer to a question, after as many calls of tools as it takes."""
        self.messages.append({"role": "user", "content": question})
        while True:
            said = self._streamed() if stream else self._asked()
            self.messages.append(said)
            if not said.get("tool_calls"):
                return str(said["content"])
            for call in said["tool_calls"]:
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": self._output(call)})

    def _output(self, call: dict[str, Any]) -> str:
        function = call["function"]
        return output_of(self._call_tool, call["id"], function["name"], json.loads(function["arguments"]))

    def _asked(self) -> dict[str, Any]:
        answer = self._client.chat.completions.create(model=scenario.MODEL, messages=self.messages, tools=self._tools)
        message = answer.choices[0].message
        return message.model_dump(exclude_none=True, include={"role", "content", "tool_calls"})

    def _streamed(self) -> dict[str, Any]:
        chunks = self._client.chat.completions.create(
            model=scenario.MODEL,
            messages=self.messages,
            tools=self._tools,
            stream=True,
            stream_options={"include_usage": True},
        )
        text, calls = "", {}
        for chunk in chunks:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                for piece in choice.delta.tool_calls or ():
                    call = calls.setdefault(piece.index, {"id": piece.id, "name": piece.function.name, "arguments": ""})
                    call["arguments"] += piece.function.arguments
        said: dict[str, Any] = {"role": "assistant", "content": text}
        if calls:
            said["tool_calls"] = [
                {"id": call["id"], "type": "function", "function": {"name": call["name"], "arguments": call["arguments"]}}
                for call in calls.values()
            ]
        return said
