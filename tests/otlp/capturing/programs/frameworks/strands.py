"""Strands Agents, which trace themselves."""

from __future__ import annotations

from programs import numbers
from strands import Agent, tool
from strands.models.openai import OpenAIModel
from strands.telemetry import StrandsTelemetry


def talk() -> None:
    """Have the conversation; every answer is streamed."""
    agent = Agent(
        name=numbers.AGENT,
        model=OpenAIModel(model_id=numbers.MODEL),
        system_prompt=numbers.INSTRUCTIONS,
        tools=[tool(numbers.double)],
        trace_attributes={"session.id": numbers.SESSION},
        callback_handler=None,
    )
    for question in numbers.QUESTIONS:
        agent(question)


if __name__ == "__main__":
    telemetry = StrandsTelemetry().setup_otlp_exporter()
    talk()
    telemetry.tracer_provider.shutdown()
