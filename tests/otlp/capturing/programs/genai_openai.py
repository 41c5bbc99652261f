"""OpenTelemetry's instrumentation of the OpenAI client under its present name, over the Responses API.

The agent traces itself and its tools with OpenTelemetry's own library, and so has a session by the conventions.
"""

from __future__ import annotations

from typing import Any

from openai import BadRequestError
from opentelemetry.instrumentation.genai.openai import OpenAIInstrumentor
from opentelemetry.util.genai.handler import get_telemetry_handler
from opentelemetry.util.genai.types import InputMessage, OutputMessage, Text
from programs import scenario
from programs.by_hand import talk
from programs.exporting import export_logs, export_spans
from programs.responses_loop import Conversation


def traced_call(call_id: str, name: str, arguments: dict[str, Any]) -> str:
    """Call a tool in a span of its own."""
    with get_telemetry_handler().tool(name, tool_type="function", tool_call_id=call_id) as tool:
        tool.arguments = arguments
        tool.tool_result = scenario.TOOLS[name](**arguments)
        return str(tool.tool_result)


def turn(conversation: Conversation, session: str, question: str, *, stream: bool = False) -> None:
    """One invocation of the agent."""
    handler = get_telemetry_handler()
    with handler.invoke_local_agent(agent_name=scenario.AGENT, conversation_id=session) as agent:
        agent.agent_version = scenario.VERSION
        agent.input_messages = [InputMessage("user", [Text(question)])]
        answer = conversation.turn(question, stream=stream)
        agent.output_messages = [OutputMessage("assistant", [Text(answer)], "stop")]


if __name__ == "__main__":
    export_spans()
    export_logs()
    OpenAIInstrumentor().instrument()
    talk(lambda: Conversation(traced_call), turn, BadRequestError)
