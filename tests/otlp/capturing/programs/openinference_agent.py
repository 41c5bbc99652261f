"""An agent and its tools under OpenInference's decorators, the session in the context, over any of the hand-written loops."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from openinference.instrumentation import TracerProvider, using_attributes
from programs import by_hand, scenario
from programs.by_hand import CallTool


def talk(provider: TracerProvider, begin: Callable[[CallTool], Any], refusal: type[Exception]) -> None:
    """Have the conversation; `begin` begins a session, `refusal` is what a client raises when the provider refuses."""
    tracer = provider.get_tracer("weather")
    tools = {name: tracer.tool(tool) for name, tool in scenario.TOOLS.items()}

    def traced_call(_call_id: str, name: str, arguments: dict[str, Any]) -> str:
        return str(tools[name](**arguments))

    def turn(conversation: Any, session: str, question: str, **options: bool) -> None:
        told = {"user_id": scenario.USER, "metadata": {"agent_version": scenario.VERSION}}
        with using_attributes(session_id=session, **told):
            tracer.agent(name=scenario.AGENT)(conversation.turn)(question, **options)

    by_hand.talk(lambda: begin(traced_call), turn, refusal)
