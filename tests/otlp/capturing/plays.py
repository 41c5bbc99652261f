"""The model's part in the conversation of every program."""

from __future__ import annotations

from agents.plays import NEVER
from openclaw.provider import Call, Play, Step

from otlp.capturing.programs import scenario

PLAYS = {
    scenario.WEATHER: Play(
        [
            Step(
                thinking=scenario.THOUGHT,
                calls=[Call("get_weather", {"town": "Bergen"}), Call("get_weather", {"town": "Lisbon"})],
                output_tokens=61,
            ),
            Step(scenario.WEATHER_ANSWER, output_tokens=17),
        ]
    ),
    scenario.BOAT: Play(
        [
            Step("Let me see.", calls=[Call("book_boat", {"destination": "Atlantis"})], output_tokens=24),
            Step(scenario.BOAT_ANSWER, output_tokens=8),
        ]
    ),
    scenario.REFUSED: Play([Step("never", failures=NEVER, status=400)]),
}
