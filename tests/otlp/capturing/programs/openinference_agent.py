"""An agent and its tools told of by OpenInference's decorators, the session in the context, over any of the hand-written loops."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from openinference.instrumentation import TracerProvider, using_attributes
from programs import scenario
from programs.loop_tools import CallTool


def talk(provider: TracerProvider, begin: Callable[[CallTool], Any], refusal: type[Exception]) -> None:
    """Have the conversation; `begin` begins a session, `refusal` is what a client raises when the provider refuses."""
    tracer = provider.get_tracer("weather")
    tools = {name: tracer.tool(tool) for name, tool in scenario.TOOLS.items()}

    def traced_call(_call_id: str, name: str, arguments: dict[str, Any]) -> str:
        return str(tools[name](**arguments))

    def agent() -> Callable[..., str]:
        return tracer.agent(name=scenario.AGENT)(begin(traced_call).turn)

    answer = agent()
    with using_attributes(session_id=scenario.SESSION, user_id=scenario.USER, metadata={"agent_version": scenario.VERSION}):
        answer(scenario.WEATHER)
        answer(scenario.BOAT, stream=True)
    with using_attributes(session_id=scenario.REFUSED_SESSION), suppress(refusal):
        agent()(scenario.REFUSED)
