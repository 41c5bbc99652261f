"""Haystack's agent."""

from __future__ import annotations

import os

from haystack.components.agents import Agent
from haystack.components.generators.chat import OpenAIChatGenerator
from haystack.dataclasses import ChatMessage
from haystack.tools import create_tool_from_function
from programs import numbers


def talk() -> None:
    """Have the conversation; the second answer is streamed."""
    agent = Agent(
        chat_generator=OpenAIChatGenerator(model=numbers.MODEL, api_base_url=os.environ["OPENAI_BASE_URL"]),
        tools=[create_tool_from_function(numbers.double)],
        system_prompt=numbers.INSTRUCTIONS,
    )
    messages = []
    for question in numbers.QUESTIONS:
        messages.append(ChatMessage.from_user(question))
        streaming = {"streaming_callback": lambda _: None} if question == numbers.STREAMED_QUESTION else {}
        messages = [
            message for message in agent.run(messages=messages, **streaming)["messages"] if not message.is_from("system")
        ]
