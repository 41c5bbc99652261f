"""A shop of three agents, imported as a table: a change of the mix, a canary and a small victim.

Tier 1 flags a refusal without a reason, so no judge is needed. The project's mean falls because of the mix, and neither of the two faults
shows in it.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import date, timedelta
from pathlib import Path
from random import Random

from driftline_trial.demo.conversations import DAYS
from driftline_trial.demo.script import moment_before

PROJECT = "shop"
TABLE = "shop.csv"
MIX_DAYS, VICTIM_DAYS, CANARY_DAYS = 14, 12, 6
"""Days before the end, the last one included, since which the mix is another one, the small agent is worse, and the canary runs."""
WEAKER, VICTIM, CANARY = "returns", "gifts", "7"
LABELS = {"labels.agent_version": "version"}
"""The column of each label; the other columns have the names of fields."""
_QUESTIONS = ("Where is order {n}?", "Can I return order {n}?", "Order {n} is broken. What now?", "When does order {n} arrive?")
_ANSWERS = ("Order {n} was shipped on Monday.", "Order {n} arrives tomorrow.", "Order {n} can be returned until Friday.")
_REFUSAL = "I can't do that for order {n}."


def write_table(path: Path, last_day: date) -> None:
    """Write the exchanges of the demo's days, each one a session of its own."""
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("session_id", "occurred_at", "agent", "version", "user_message", "agent_response"))
        writer.writerows(_rows(last_day))


def _rows(last_day: date) -> Iterator[tuple[str, ...]]:
    random = Random(7)  # noqa: S311 - texts to look at, no secrets
    for days_before in reversed(range(DAYS)):
        for agent, version, sessions, refused in _traffic(days_before):
            for number in range(sessions):
                at = moment_before(last_day, days_before, 8) + timedelta(seconds=random.randrange(12 * 3600))
                answer = _REFUSAL if random.random() < refused else random.choice(_ANSWERS)
                order = random.randint(1000, 9999)
                texts = (text.format(n=order) for text in (random.choice(_QUESTIONS), answer))
                yield (f"{agent}-{version}-{days_before}-{number}", at.isoformat(), agent, version, *texts)


def _traffic(days_before: int) -> Iterator[tuple[str, str, int, float]]:
    """Yield each agent and version with its sessions of the day and the share of them that is refused."""
    weaker, canary = (14 if days_before < MIX_DAYS else 6), 2 * (days_before < CANARY_DAYS)
    yield WEAKER, "3", weaker, 0.5
    yield "search", "6", 24 - weaker - canary, 0.15
    yield "search", CANARY, canary, 1.0
    yield VICTIM, "2", 1, 1.0 if days_before < VICTIM_DAYS else 0.0
