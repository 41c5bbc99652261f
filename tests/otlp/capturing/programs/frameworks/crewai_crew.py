"""A crew of CrewAI with one agent."""

from __future__ import annotations

from crewai import LLM, Agent, Crew, Task
from crewai.tools import tool
from programs import numbers


def talk() -> None:
    """Have the conversation, a kickoff for each question; the second answer is streamed."""
    for question in numbers.QUESTIONS:
        agent = Agent(
            role=numbers.AGENT,
            goal=numbers.INSTRUCTIONS,
            backstory="You can calculate.",
            llm=LLM(model=f"openai/{numbers.MODEL}", stream=question == numbers.STREAMED_QUESTION),
            tools=[tool("double")(numbers.double)],
        )
        task = Task(description=question, expected_output="One sentence.", agent=agent)
        Crew(agents=[agent], tasks=[task]).kickoff()
