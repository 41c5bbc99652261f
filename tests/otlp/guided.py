"""Turns of agents that are connected as the guide says: what follows the guide's lines in a program of each stack.

A turn has the words by which the guide sets a session, and nothing else that names one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from support.model_apis import chat_completions, responses
from support.model_apis import messages as provider

from otlp.capturing.dialects import StandIn

SESSION = "s-1"
"""The session of the guide."""
INCLUDED = "telemetry: { functionId: 'agent', includeRuntimeContext: { sessionId: true } }"


@dataclass(frozen=True)
class Turn:
    """One turn of the agent of a stack, in the environment with these requirements."""

    stack: str
    requirements: str
    said: tuple[str, ...]
    """Words of the guide that are in the program."""
    code: str
    stand_in: StandIn = chat_completions.stand_in
    tool_prefix: str = ""
    left_out: tuple[str, ...] = ()
    """Words of the guide whose lines are left out, as it says."""
    prints_session: bool = False
    """Whether the session is the SDK's own, and the program prints it."""

    def program(self, lines: str) -> str:
        """The guide's lines and the turn, with the words of the guide in their places."""
        kept = [line for line in lines.splitlines() if not any(words in line for words in self.left_out)]
        return "\n".join([*kept, self.code.format(*self.said)])


_SESSION_AROUND = 'with using_session("s-1"):'
_OPENAI_AGENTS = """
from agents import Runner
from programs import scenario
from programs.openai_agent import weather_agent

{}
    Runner.run_sync(weather_agent(), scenario.WEATHER)
"""
_LANGGRAPH = """
from programs import scenario
from programs.langchain_agent import weather_agent

{}
    weather_agent().invoke({{"messages": [{{"role": "user", "content": scenario.WEATHER}}]}})
"""
_LANGGRAPH_THREAD = """
from langgraph.checkpoint.memory import InMemorySaver
from programs import scenario
from programs.langchain_agent import weather_agent

agent = weather_agent(InMemorySaver())
agent.invoke({{"messages": [{{"role": "user", "content": scenario.WEATHER}}]}}, {})
"""
_CLAUDE = """
import asyncio

{}
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
{}
"""
_OPENAI = """
from programs import scenario
from programs.loop import Conversation

{}
    Conversation().turn(scenario.WEATHER)
"""
_LANGFUSE = """
from programs import scenario
from programs.langfuse import begun, observed

{}
    observed(begun(), scenario.WEATHER)
"""
_VERCEL = """
import {{ createOpenAI }} from '@ai-sdk/openai';
import * as ai from 'ai';
import {{ z }} from 'zod';

const scenario = JSON.parse(process.env.SCENARIO);
const get_weather = ai.tool({{
  description: 'Tell the weather in a town.',
  inputSchema: z.object({{ town: z.string() }}),
  execute: async ({{ town }}) => ({{ town, sky: 'rain' }}),
}});
await ai.generateText({{
  model: createOpenAI()(scenario.MODEL),
  prompt: scenario.WEATHER,
  tools: {{ get_weather }},
  stopWhen: (ai.isStepCount ?? ai.stepCountIs)(5),
  {},
}});
{}
"""
_SHUTDOWN = "await sdk.shutdown();"
_VERCEL_7 = Turn(
    "vercel-ai",
    "vercel_ai",
    (f"runtimeContext: {{ sessionId: '{SESSION}' }}", INCLUDED, _SHUTDOWN),
    _VERCEL.replace("{},", "{},\n  {},"),
    responses.stand_in,
)
_LANGGRAPH_TURN = Turn("langgraph", "openinference_langchain", (_SESSION_AROUND,), _LANGGRAPH)

TURNS: Mapping[str, Turn] = {
    "openai-agents": Turn(
        "openai-agents", "openinference_openai_agents", (_SESSION_AROUND,), _OPENAI_AGENTS, responses.stand_in
    ),
    "langgraph": _LANGGRAPH_TURN,
    "langgraph, a thread": replace(
        _LANGGRAPH_TURN, said=('config={"configurable": {"thread_id": "s-1"}}',), code=_LANGGRAPH_THREAD
    ),
    "claude-agent-sdk": Turn(
        "claude-agent-sdk",
        "openinference_claude_agent_sdk",
        ("from claude_agent_sdk import query",),
        _CLAUDE,
        provider.stand_in,
        tool_prefix="mcp__weather__",
        prints_session=True,
    ),
    "pydantic-ai": Turn("pydantic-ai", "pydantic_ai", ('agent.run_sync(question, conversation_id="s-1")',), _PYDANTIC_AI),
    "vercel-ai": _VERCEL_7,
    "vercel-ai, version 6": replace(
        _VERCEL_7,
        requirements="vercel_ai_6",
        said=(
            f"experimental_telemetry: {{ isEnabled: true, functionId: 'agent', metadata: {{ sessionId: '{SESSION}' }} }}",
            _SHUTDOWN,
        ),
        code=_VERCEL,
        left_out=("registerTelemetry", "@ai-sdk/otel"),
    ),
    "openai": Turn(
        "openai",
        "openinference_openai",
        ('with using_session("s-1"), tracer.start_as_current_span("my-agent", attributes=as_agent):',),
        _OPENAI,
    ),
    "langfuse": Turn("langfuse", "langfuse", (f'with propagate_attributes(session_id="{SESSION}"):',), _LANGFUSE),
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
with trace.get_tracer("shop").start_as_current_span("POST /chat", attributes={{"session.id": "s-1"}}):
    Conversation().turn(scenario.WEATHER)
"""
WITHOUT_CONTENT: Mapping[str, Turn] = {
    "genai-openai": Turn("any", "genai_openai", (), _GENAI_OPENAI, responses.stand_in),
    "openai-v2": Turn("any", "openai_v2", (), _OPENAI_V2),
}
"""Turns under OpenTelemetry's own instrumentors, which record no texts by default."""
