"""The part of the synthetic fleet that reports plain events: faults that a transcript cannot show."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from random import Random
from typing import Any

from audit.fingerprints import stable_id
from service.demo.fleet_faults import PlannedSession

AGENT = "sandbox-runner"
"""Agent whose sessions are reported as events."""
EVENTS_FILE = "events.jsonl"
"""File that holds them, below the fleet's root."""
_CONTEXT_LIMIT = 80

Json = dict[str, Any]

_PLANTS: dict[str, tuple[str, tuple[Json, ...]]] = {
    "ignored_output": ("ignoring_tool_outputs", ({"event": "tool_output", "tool": "lint", "used": False},)),
    "skill_not_invoked": ("skill_failure", ({"event": "skill_event", "skill": "release-notes", "invoked": False},)),
    "saturated_context": ("context_pollution", ({"event": "context_event", "saturation": 96},)),
    "skill_mismatch": ("skill_failure", ({"event": "skill_event", "skill": "pdf", "status": "mismatch"},) * 2),
}
"""The planted faults: a name, the failure type to be found, and the events."""


def write_events(start: datetime, days: int, seed: int) -> Iterator[tuple[PlannedSession, list[str]]]:
    """Write one session per day, line by line; every second one has no fault."""
    kinds = list(_PLANTS)
    for day in range(days):
        random = Random(f"{seed}/{AGENT}/{day}")  # noqa: S311 - texts to look at, no secrets
        planned = PlannedSession(stable_id("synthetic", seed, AGENT, day), AGENT, EVENTS_FILE)
        events = _sound_events(random)
        if day % 2:
            name = kinds[day // 2 % len(kinds)]
            failure, planted = _PLANTS[name]
            planned.planted.append(name)
            planned.failures.add(failure)
            events[-1:-1] = planted
        at = start + timedelta(days=day, hours=9 + random.randint(0, 8))
        lines = []
        for event in events:
            at += timedelta(seconds=random.randint(1, 90))
            envelope = {"session_id": planned.session_id, "agent": AGENT, "timestamp": at.isoformat()}
            lines.append(json.dumps({**envelope, **event}))
        yield planned, lines


def _sound_events(random: Random) -> list[Json]:
    events: list[Json] = [{"event": "session_start"}]
    for step in range(random.randint(2, 6)):
        events += [
            {"event": "tool_call", "tool": "build", "args": {"target": f"module-{step}"}},
            {"event": "tool_output", "tool": "build", "used": True, "duration_ms": random.randint(50, 5000)},
            {"event": "token_usage", "usage": {"total": random.randint(200, 900)}},
            {"event": "context_event", "saturation": random.randint(5, _CONTEXT_LIMIT)},
        ]
    return [*events, {"event": "skill_event", "skill": "release-notes", "invoked": True}, {"event": "session_end"}]
