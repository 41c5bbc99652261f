"""Histories as data: the steps that senders take and the faults that strike, drawn from a seed or written down in a test."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass

EMBEDDED, KAFKA = "embedded", "kafka"
WORLDS = (EMBEDDED, KAFKA)
SESSIONS = ("a", "b", "c")
POLICIES = 3
"""See `simulation.world.POLICIES`."""


@dataclass(frozen=True)
class Step:
    """A sender does something: "exchanges" or "events" of a session, "end" or "erase" it, "rejudge" what stayed unscored, or "read"."""

    sender: int
    does: str
    session: str = ""
    first: int = 0
    """The number of the first record, and how many there are."""
    count: int = 1
    content: int = 0
    """Another number is another content under the same identity."""
    pause: float = 0.0
    """Seconds before it."""


@dataclass(frozen=True)
class Fault:
    """Something goes wrong, the n-th time that a point is passed. What can go wrong is in `EMBEDDED_FAULTS` and `KAFKA_FAULTS`."""

    point: str
    n: int
    what: str
    amount: float = 0.0


@dataclass(frozen=True)
class History:
    """All that a simulated history is made from: the same again is the same byte for byte."""

    world: str
    seed: int
    """Draws delays and answers."""
    policy: int = 0
    steps: tuple[Step, ...] = ()
    faults: tuple[Fault, ...] = ()


_JUDGE = ("fails", "fails once", "times out", "hangs", "is slow", "answers nonsense", "refuses", "crashes", "tells no usage")
EMBEDDED_FAULTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "append": (40, ("killed before", "killed after", "no room", "error, yet written")),
    "commit": (30, ("killed before", "killed after", "fails", "fails, yet durable", "gives up")),
    "round": (900, ("killed", "stopped", "stopped at once")),
    "second": (20, ("clock jumps",)),
    "question": (16, _JUDGE),
}
"""By point: how often it is passed at most, about, and what can go wrong there. A round is one of the event loop."""
KAFKA_FAULTS: dict[str, tuple[int, tuple[str, ...]]] = {
    "send": (
        60,
        ("killed before", "killed after", "fails", "fails, yet written", "partly written", "written twice", "slow"),
    ),
    "call": (60, ("lost", "unanswered")),
    "commit": (20, ("killed before", "killed after", "fails", "fails, yet durable", "gives up")),
    "round": (3000, ("killed", "stands still", "stopped")),
    "second": (20, ("clock jumps", "partitions move", "partitions move", "compaction", "marks")),
    "question": (16, _JUDGE),
}


def draw(world: str, seed: int) -> History:
    """The history of a seed."""
    chance = random.Random(f"{world} {seed}")
    return History(
        world=world,
        seed=seed,
        policy=chance.randrange(POLICIES),
        steps=_draw_steps(chance, world),
        faults=_draw_faults(chance, EMBEDDED_FAULTS if world == EMBEDDED else KAFKA_FAULTS),
    )


def _draw_steps(chance: random.Random, world: str) -> tuple[Step, ...]:
    sessions, steps = SESSIONS[: chance.randrange(1, len(SESSIONS) + 1)], list[Step]()
    told: Counter[tuple[str, str]] = Counter()
    for sender in range(chance.choice((1, 2, 2, 3))):
        for _ in range(chance.randrange(1, 5)):
            session = chance.choice(sessions)
            pause = chance.choice((0.0, 0.0, 0.02, 0.4, 3.0))
            what = chance.random()
            if what < 0.75:
                does = "exchanges" if chance.random() < 0.7 else "events"
                first, count = 1 + told[does, session], chance.choice((1, 1, 2, 2))
                if told[does, session] and chance.random() < 0.3:
                    first = chance.randrange(1, first)
                told[does, session] = max(told[does, session], first + count - 1)
                content = int(chance.random() < 0.15)
                steps.append(Step(sender, does, session, first, count, content, pause))
            else:
                does = chance.choice(("end", "end", "rejudge", "read", "read", *(["erase"] if world == EMBEDDED else [])))
                steps.append(Step(sender, does, "" if does in {"rejudge", "read"} else session, pause=pause))
    return tuple(steps)


def _draw_faults(chance: random.Random, kinds: dict[str, tuple[int, tuple[str, ...]]]) -> tuple[Fault, ...]:
    faults: dict[tuple[str, int], Fault] = {}
    for _ in range(chance.randrange(1, 8)):
        point = chance.choice(list(kinds))
        most, what = kinds[point]
        n = 1 + int(most * chance.random() ** 2)
        amount = round(chance.uniform(-7200, 7200), 6) if point == "second" else float(chance.randrange(1, 4))
        faults[point, n] = Fault(point, n, chance.choice(what), amount)
    return tuple(sorted(faults.values(), key=lambda fault: (fault.point, fault.n)))
