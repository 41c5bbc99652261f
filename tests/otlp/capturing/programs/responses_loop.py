"""The agent of `loop` over the Responses API, which sends the model's reasoning along."""

from __future__ import annotations

import json
from typing import Any

from openai import OpenAI
from programs import scenario
from programs.by_hand import CallTool, output_of, plain_call


class Conversation:
    """The items of one session, which are sent again with every question."""

    def __init__(self, call_tool: CallTool = plain_call) -> None:
        self._client = OpenAI(max_retries=0)
        self._call_tool = call_tool
        self._tools = [{"type": "function", "strict": False, **schema} for schema in scenario.function_schemas()]
        self.items: list[Any] = []

    def turn(self, question: str, *, stream: bool = False) -> str:
        """The answer to a question, after as many calls of tools as it takes."""
        self.items.append({"role": "user", "content": question})
        while True:
            response = self._streamed() if stream else self._asked()
            self.items += [item.model_dump(exclude_none=True) for item in response.output]
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return str(response.output_text)
            for call in calls:
                output = output_of(self._call_tool, call.call_id, call.name, json.loads(call.arguments))
                self.items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})

    def _asked(self, **options: Any) -> Any:
        return self._client.responses.create(
            model=scenario.MODEL,
            instructions=scenario.SYSTEM,
            input=self.items,
            tools=self._tools,
            reasoning={"effort": "low", "summary": "auto"},
            **options,
        )

    def _streamed(self) -> Any:
        last = None
        for event in self._asked(stream=True):
            last = event
        return last.response
