"""The conversation that every program has: two turns of one session, and one turn of another that the provider refuses."""

from __future__ import annotations

import json
from typing import Any

SESSION = "weather-session-1"
REFUSED_SESSION = "weather-session-2"
USER = "user-42"
AGENT = "weather-agent"
VERSION = "1.4.0"
MODEL = "gpt-5.1"
CLAUDE = "claude-sonnet-5-5"

SYSTEM = "You are a weather assistant. Answer in one sentence."
WEATHER = "How is the weather in Bergen and in Lisbon?"
BOAT = "Book me a boat to Atlantis."
REFUSED = "Nothing works."

THOUGHT = "Both towns have to be looked up."
WEATHER_ANSWER = "Rain at 9 °C in Bergen, sun at 21 °C in Lisbon."
BOAT_ANSWER = "No boat goes to Atlantis."

_WEATHER = {"Bergen": ("rain", 9), "Lisbon": ("sun", 21)}


def get_weather(town: str) -> str:
    """Tell the weather in a town.

    Args:
        town: The town's name.
    """
    sky, celsius = _WEATHER[town]
    return json.dumps({"town": town, "sky": sky, "celsius": celsius})


def book_boat(destination: str) -> str:
    """Book a boat.

    Args:
        destination: The port that the boat goes to.
    """
    raise ValueError(f"no boat goes to {destination}")


TOOLS = {"get_weather": get_weather, "book_boat": book_boat}
_PARAMETERS = {"get_weather": "town", "book_boat": "destination"}


def function_schemas() -> list[dict[str, Any]]:
    """The tools by name, description and JSON schema of the arguments."""
    return [
        {
            "name": name,
            "description": str(TOOLS[name].__doc__).partition("\n")[0],
            "parameters": {
                "type": "object",
                "properties": {parameter: {"type": "string"}},
                "required": [parameter],
            },
        }
        for name, parameter in _PARAMETERS.items()
    ]
