"""The rounds of the watch: who is checked, and when; and that one that cannot be checked holds up nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import timedelta

import pytest
from support.engines import engine_over
from support.watch_histories import END, ended_run, fallen, history, put, steady

from analytics.store.store import Store
from audit.policy import Policy
from streams.log.sink import StorePublisher
from streams.watch.checking import CheckResult
from streams.watch.rounds import WatchRounds
from streams.watch.watching import Watch

SECOND = timedelta(seconds=1)


@pytest.fixture
def store() -> Iterator[Store]:
    """Return an empty store."""
    with Store(None) as opened:
        yield opened


class Rounds:
    """Rounds over a store with a clock that the test sets; records the projects checked in each."""

    def __init__(self, store: Store, *, failing: str = "") -> None:
        self.now = END
        self.ready = True
        self.asked: list[list[str]] = []
        self._failing = failing
        self._watch = Watch(StorePublisher(store, Policy(), lambda: self.now))
        self._check = self._watch.check
        self._watch.check = self._noted  # type: ignore[method-assign]
        self._rounds = WatchRounds(self._watch, store, lambda: self.now, lambda: self.ready)

    def run(self) -> list[str]:
        """Run one round and return the checked projects."""
        self.asked = []
        asyncio.run(self._rounds.run())
        return [project for part in self.asked for project in part]

    async def _noted(self, projects: Sequence[str], as_of: object = None) -> list[CheckResult]:
        assert as_of is None
        if self._failing in projects:
            raise ValueError("it cannot be checked")
        self.asked.append(list(projects))
        return await self._check(projects)


def test_a_project_with_new_scores_is_checked_at_most_once_per_minute(store: Store) -> None:
    """A busy project would otherwise be checked continuously, and a quiet one for nothing."""
    rounds = Rounds(store)
    assert rounds.run() == []
    put(store, "scores", history(steady, 2))
    assert rounds.run() == ["ops"]
    rounds.now += 10 * SECOND
    put(store, "scores", history(steady, 0, end=END + 5 * SECOND, name="-more"))
    assert rounds.run() == []
    rounds.now += 49 * SECOND
    assert rounds.run() == []
    rounds.now += 1 * SECOND
    assert rounds.run() == ["ops"]
    rounds.now += 600 * SECOND
    assert rounds.run() == []


def test_only_projects_with_new_scores_are_checked(store: Store) -> None:
    """One busy project among a thousand must not cause a check of all."""
    put(store, "scores", [*history(steady, 2), *history(steady, 2, project="web"), *history(steady, 2, project="anchors.ops")])
    rounds = Rounds(store)
    assert rounds.run() == ["ops", "web"]
    rounds.now += 120 * SECOND
    put(store, "scores", history(steady, 0, project="web", name="-more"))
    assert rounds.run() == ["web"]


def test_every_project_is_checked_regularly(store: Store) -> None:
    """Baselines age, and a process killed after a flush has not checked the new scores."""
    put(store, "scores", [*history(steady, 2), *history(steady, 2, project="old", end=END - timedelta(days=30))])
    assert set(Rounds(store).run()) == {"ops", "old"}
    rounds = Rounds(store)
    assert rounds.run() == ["ops"]
    rounds.now += timedelta(minutes=59)
    assert rounds.run() == []
    rounds.now += timedelta(minutes=1)
    assert rounds.run() == ["ops"]


def test_a_project_that_cannot_be_checked_delays_no_other(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    """An error caused by one project's scores must not disable the watch for all."""
    put(store, "scores", [*history(steady, 2), *history(steady, 2, project="web"), *history(fallen(6), 30, project="shop")])
    rounds = Rounds(store, failing="ops")
    assert set(rounds.run()) == {"shop", "web"}
    assert "project ops cannot be checked" in caplog.text
    assert store.cursor().execute("SELECT DISTINCT project FROM incidents").fetchall() == [("shop",)]


def test_nothing_is_checked_before_the_tables_are_complete(store: Store) -> None:
    """On Kafka the tables lag behind: an incident that is not in them yet would be opened again."""
    put(store, "scores", history(steady, 2))
    rounds = Rounds(store)
    rounds.ready = False
    assert rounds.run() == []
    rounds.ready = True
    assert rounds.run() == ["ops"]


def test_many_projects_are_read_in_groups(store: Store) -> None:
    """Fifty projects share one scan, and people's decisions are handled between groups."""
    put(store, "scores", [score for number in range(60) for score in history(steady, 0, project=f"p{number:02}", a_day=1)])
    rounds = Rounds(store)
    assert len(rounds.run()) == 60
    assert [len(part) for part in rounds.asked] == [50, 10]


def test_a_watch_works_over_an_engine(store: Store) -> None:
    """A server publishes its incidents through the single writer of the log."""
    put(store, "scores", history(fallen(6), 40))

    async def run() -> None:
        async with engine_over(store, now=lambda: END) as engine:
            await WatchRounds(Watch(engine), store, engine.now, lambda: engine.state().ready).run()

    asyncio.run(run())
    assert store.cursor().execute("SELECT project, type, tier, status FROM incidents").fetchall() == [
        ("ops", "drift", "tier2", "open")
    ]
    assert store.count("baselines") == 1


def test_a_project_with_finished_runs_is_checked(store: Store) -> None:
    """Runs need no scores; an import of history waits for the hourly check, which covers recent days only."""
    rounds = Rounds(store)
    assert rounds.run() == []
    rounds.now = END + 10 * SECOND
    put(
        store,
        "diagnoses",
        [ended_run("a", END), ended_run("b", END, project="web"), ended_run("c", END - timedelta(days=2), project="past")],
    )
    assert rounds.run() == ["ops", "web"]
    rounds.now = END + timedelta(seconds=3700)
    assert rounds.run() == ["ops", "past", "web"]


@pytest.mark.parametrize(("took", "pause"), [(0.1, 5.0), (2.0, 18.0), (90.0, 60.0)])
def test_the_pause_after_a_round_grows_with_its_duration(store: Store, took: float, pause: float) -> None:
    """A day with half a million scores takes seconds to sum; checking it every five seconds would slow down ingestion."""
    clock = iter([0.0, took])
    rounds = WatchRounds(
        Watch(StorePublisher(store, Policy(), lambda: END)), store, lambda: END, lambda: True, lambda: next(clock)
    )
    assert rounds.interval == 5.0
    asyncio.run(rounds.run())
    assert rounds.interval == pause
