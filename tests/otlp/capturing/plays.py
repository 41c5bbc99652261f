"""The model's part in the conversation of every program."""

from __future__ import annotations

from agents.plays import NEVER
from openclaw.provider import Call, Play, Step

from otlp.capturing.programs import scenario


def plays(prefix: str = "") -> dict[str, Play]:
    """What the model says to each question; `prefix` is what an SDK puts before the names of its tools."""
    towns = [Call(f"{prefix}get_weather", {"town": town}) for town in ("Bergen", "Lisbon")]
    boat = Call(f"{prefix}book_boat", {"destination": "Atlantis"})
    return {
        scenario.WEATHER: Play(
            [Step(thinking=scenario.THOUGHT, calls=towns, output_tokens=61), Step(scenario.WEATHER_ANSWER, output_tokens=17)]
        ),
        scenario.BOAT: Play([Step("Let me see.", calls=[boat], output_tokens=24), Step(scenario.BOAT_ANSWER, output_tokens=8)]),
        scenario.REFUSED: Play([Step("never", failures=NEVER, status=400)]),
    }
