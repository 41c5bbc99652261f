"""Programs that run one turn of an agent, connected to Driftline by the lines of the guide: one program per stack.

The session of a turn is set only by a snippet of the guide, so the tests notice if the guide's way does not work.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from string import Template

from support.model_apis import chat_completions, messages, responses

from otlp.capturing.dialects import StandIn

SESSION = "s-1"
"""The guide's example of a session id."""


@dataclass(frozen=True)
class Turn:
    """A program that runs one turn of an agent, in the environment that `requirements` names."""

    stack: str
    requirements: str
    template: str
    """The code after the guide's lines, with a placeholder for each snippet."""
    snippets: Mapping[str, str] = field(default_factory=dict)
    """The guide's code for setting the session, by placeholder."""
    stand_in: StandIn = chat_completions.stand_in
    tool_prefix: str = ""
    omitted: tuple[str, ...] = ()
    """The guide says to leave out the lines that contain one of these texts."""
    prints_session: bool = False
    """Whether the SDK chooses the session id, which the program then prints."""

    def build_program(self, guide_lines: str) -> str:
        """Return the guide's lines followed by the turn."""
        lines = [line for line in guide_lines.splitlines() if not any(text in line for text in self.omitted)]
        return "\n".join([*lines, Template(self.template).substitute(self.snippets)])


_OPENAI_AGENTS = """
from agents import Runner
from programs import scenario
from programs.openai_agent import weather_agent

$session_scope
    Runner.run_sync(weather_agent(), scenario.WEATHER)
"""
_LANGGRAPH = """
from programs import scenario
from programs.langchain_agent import weather_agent

$session_scope
    weather_agent().invoke({"messages": [{"role": "user", "content": scenario.WEATHER}]})
"""
_LANGGRAPH_THREAD = """
from langgraph.checkpoint.memory import InMemorySaver
from programs import scenario
from programs.langchain_agent import weather_agent

agent = weather_agent(InMemorySaver())
agent.invoke({"messages": [{"role": "user", "content": scenario.WEATHER}]}, $thread_config)
"""
_CLAUDE_AGENT_SDK = """
import asyncio

$sdk_import
from programs import scenario
from programs.openinference_claude_agent_sdk import weather_options


async def talk():
    async for message in query(prompt=scenario.WEATHER, options=weather_options()):
        session = getattr(message, "session_id", None)
    return session


print(asyncio.run(talk()))
"""
_PYDANTIC_AI = """
from programs import scenario
from programs.pydantic_ai import weather_agent

agent, question = weather_agent(), scenario.WEATHER
$agent_run
"""
_OPENAI = """
from programs import scenario
from programs.loop import Conversation

$session_scope
    Conversation().turn(scenario.WEATHER)
"""
_LANGFUSE = """
from programs import scenario
from programs.langfuse import begun, observed

$session_scope
    observed(begun(), scenario.WEATHER)
"""
_VERCEL_6 = """
import { createOpenAI } from '@ai-sdk/openai';
import * as ai from 'ai';
import { z } from 'zod';

const scenario = JSON.parse(process.env.SCENARIO);
const get_weather = ai.tool({
  description: 'Tell the weather in a town.',
  inputSchema: z.object({ town: z.string() }),
  execute: async ({ town }) => ({ town, sky: 'rain' }),
});
await ai.generateText({
  model: createOpenAI()(scenario.MODEL),
  prompt: scenario.WEATHER,
  tools: { get_weather },
  stopWhen: (ai.isStepCount ?? ai.stepCountIs)(5),
  $telemetry,
});
$shutdown
"""
_VERCEL_7 = _VERCEL_6.replace("$telemetry,", "$runtime_context,\n  $telemetry,")

_SESSION_SCOPE = {"session_scope": 'with using_session("s-1"):'}
_SHUTDOWN = "await sdk.shutdown();"
_VERCEL_TURN = Turn(
    stack="vercel-ai",
    requirements="vercel_ai",
    template=_VERCEL_7,
    snippets={
        "runtime_context": f"runtimeContext: {{ sessionId: '{SESSION}' }}",
        "telemetry": "telemetry: { functionId: 'agent', includeRuntimeContext: { sessionId: true } }",
        "shutdown": _SHUTDOWN,
    },
    stand_in=responses.stand_in,
)
_LANGGRAPH_TURN = Turn(stack="langgraph", requirements="openinference_langchain", template=_LANGGRAPH, snippets=_SESSION_SCOPE)

TURNS: Mapping[str, Turn] = {
    "openai-agents": Turn(
        stack="openai-agents",
        requirements="openinference_openai_agents",
        template=_OPENAI_AGENTS,
        snippets=_SESSION_SCOPE,
        stand_in=responses.stand_in,
    ),
    "langgraph": _LANGGRAPH_TURN,
    "langgraph, a thread": replace(
        _LANGGRAPH_TURN,
        template=_LANGGRAPH_THREAD,
        snippets={"thread_config": 'config={"configurable": {"thread_id": "s-1"}}'},
    ),
    "claude-agent-sdk": Turn(
        stack="claude-agent-sdk",
        requirements="openinference_claude_agent_sdk",
        template=_CLAUDE_AGENT_SDK,
        snippets={"sdk_import": "from claude_agent_sdk import query"},
        stand_in=messages.stand_in,
        tool_prefix="mcp__weather__",
        prints_session=True,
    ),
    "pydantic-ai": Turn(
        stack="pydantic-ai",
        requirements="pydantic_ai",
        template=_PYDANTIC_AI,
        snippets={"agent_run": 'agent.run_sync(question, conversation_id="s-1")'},
    ),
    "vercel-ai": _VERCEL_TURN,
    "vercel-ai, version 6": replace(
        _VERCEL_TURN,
        requirements="vercel_ai_6",
        template=_VERCEL_6,
        snippets={
            "telemetry": (
                f"experimental_telemetry: {{ isEnabled: true, functionId: 'agent', metadata: {{ sessionId: '{SESSION}' }} }}"
            ),
            "shutdown": _SHUTDOWN,
        },
        omitted=("registerTelemetry", "@ai-sdk/otel"),
    ),
    "openai": Turn(
        stack="openai",
        requirements="openinference_openai",
        template=_OPENAI,
        snippets={
            "session_scope": ('with using_session("s-1"), tracer.start_as_current_span("my-agent", attributes=as_agent):')
        },
    ),
    "langfuse": Turn(
        stack="langfuse",
        requirements="langfuse",
        template=_LANGFUSE,
        snippets={"session_scope": f'with propagate_attributes(session_id="{SESSION}"):'},
    ),
}

_GENAI_OPENAI = """
from opentelemetry import trace
from programs import scenario
from programs.genai_openai import Conversation, OpenAIInstrumentor, traced_call, turn

trace.set_tracer_provider(provider)
OpenAIInstrumentor().instrument()
turn(Conversation(traced_call), "s-1", scenario.WEATHER)
"""
_OPENAI_V2 = """
from opentelemetry import trace
from opentelemetry.instrumentation.openai_v2 import OpenAIInstrumentor
from programs import scenario
from programs.loop import Conversation

trace.set_tracer_provider(provider)
OpenAIInstrumentor().instrument()
with trace.get_tracer("shop").start_as_current_span("POST /chat", attributes={"session.id": "s-1"}):
    Conversation().turn(scenario.WEATHER)
"""
WITHOUT_CONTENT: Mapping[str, Turn] = {
    "genai-openai": Turn(stack="any", requirements="genai_openai", template=_GENAI_OPENAI, stand_in=responses.stand_in),
    "openai-v2": Turn(stack="any", requirements="openai_v2", template=_OPENAI_V2),
}
"""Turns under OpenTelemetry's own instrumentors, which by default record no message content."""
