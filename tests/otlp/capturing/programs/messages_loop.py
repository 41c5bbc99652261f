"""The agent of `loop` over Anthropic's Messages API, the model's reasoning among the blocks that it answers with."""

from __future__ import annotations

from typing import Any

from anthropic import Anthropic
from programs import scenario
from programs.by_hand import CallTool, output_of, plain_call


class Conversation:
    """The messages of one session, which are sent again with every question."""

    def __init__(self, call_tool: CallTool = plain_call) -> None:
        self._client = Anthropic(max_retries=0)
        self._call_tool = call_tool
        self._tools = [
            {"name": schema["name"], "description": schema["description"], "input_schema": schema["parameters"]}
            for schema in scenario.function_schemas()
        ]
        self.messages: list[Any] = []

    def turn(self, question: str, *, stream: bool = False) -> str:
        """The answer to a question, after as many calls of tools as it takes."""
        self.messages.append({"role": "user", "content": question})
        while True:
            message = self._streamed() if stream else self._client.messages.create(**self._request())
            self.messages.append({"role": "assistant", "content": [block.to_dict() for block in message.content]})
            calls = [block for block in message.content if block.type == "tool_use"]
            if not calls:
                return "".join(block.text for block in message.content if block.type == "text")
            self.messages.append({"role": "user", "content": [self._result(call) for call in calls]})

    def _request(self) -> dict[str, Any]:
        return {
            "model": scenario.CLAUDE,
            "max_tokens": 2048,
            "system": scenario.SYSTEM,
            "messages": self.messages,
            "tools": self._tools,
            "thinking": {"type": "enabled", "budget_tokens": 1024},
        }

    def _streamed(self) -> Any:
        with self._client.messages.stream(**self._request()) as stream:
            return stream.get_final_message()

    def _result(self, call: Any) -> dict[str, Any]:
        output = output_of(self._call_tool, call.id, call.name, call.input)
        return {"type": "tool_result", "tool_use_id": call.id, "content": output, "is_error": output.startswith("Error")}
