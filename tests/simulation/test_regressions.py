"""Histories that once broke a law, shrunk: each is a fault that the simulation found."""

from __future__ import annotations

from simulation.history import EMBEDDED, Fault, History, Step
from simulation.running import live


def test_a_stop_waits_for_what_a_stage_still_submits() -> None:
    """Diagnosis was at work when the server was asked to stop, the loop of commits ended before it was done, and the stop never came to an end."""
    history = History(
        EMBEDDED,
        7,
        steps=(
            Step(sender=0, does="events", session="a", first=1),
            Step(sender=1, does="exchanges", session="b", first=1, count=3, pause=0.4),
        ),
        faults=(Fault(point="round", n=39, what="stopped at once"),),
    )
    assert live(history).broken is None


def test_a_database_that_gives_up_in_an_erasure_is_opened_again() -> None:
    """Nothing was pending, so no flush met the database that had given up, and every erasure was refused for ever."""
    history = History(
        EMBEDDED,
        5415,
        policy=1,
        steps=(
            Step(sender=0, does="exchanges", session="b", first=1, count=2),
            Step(sender=0, does="erase", session="b"),
        ),
        faults=(Fault(point="append", n=1, what="killed after"), Fault(point="commit", n=12, what="gives up")),
    )
    assert live(history).broken is None
