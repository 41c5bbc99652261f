"""The log in trouble: what callers bring fails, what the engine made is submitted until it is taken, a broken database is said."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, cast

import builders as build
import duckdb
import pytest
from engines import MoodyJudge, engine_over
from tenacity import wait_none

from analytics.store.store import Store
from schemas.errors import StoreError
from streams.engine.embedded import EmbeddedRunner
from streams.engine.engine import MANY, RECENT, AtHand, Commits
from streams.judging.call_budget import StoppedError
from streams.log.admission import Accepted, Committed, Submission
from streams.log.group_commit import GroupCommit
from streams.log.log_writer import LogWriter
from streams.topology import Stage

FULL = duckdb.IOException("No space left on device")
BROUGHT = Submission(outside=Accepted(records=1))
DEAD = duckdb.FatalException("database has been invalidated")


class Log:
    """Takes what comes, after it has failed in the ways that it was told."""

    is_idle = is_asleep = True

    def __init__(self, *failures: Exception) -> None:
        self._failures = list(failures)
        self.tries = 0

    def submit(self, _: Submission, *, must: bool, wakes: bool) -> Future[Committed]:
        """An outcome at once."""
        assert (bool, False) == (type(must), wakes)
        self.tries += 1
        future: Future[Committed] = Future()
        if self._failures:
            future.set_exception(self._failures.pop(0))
        else:
            future.set_result(Committed({}, {}, {}))
        return future

    def wake(self) -> None:
        """Nothing sleeps."""


class SleepingLog(Log):
    """Takes what has come when it is woken."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: list[int] = []
        self._waiting: list[Future[Committed]] = []

    def submit(self, _: Submission, *, must: bool, wakes: bool) -> Future[Committed]:
        """An outcome later."""
        assert (False, False) == (must, wakes)
        self._waiting.append(Future())
        return self._waiting[-1]

    def wake(self) -> None:
        """Commit what waits."""
        waiting, self._waiting = self._waiting, []
        self.groups.append(len(waiting))
        for future in waiting:
            future.set_result(Committed({}, {}, {}))


def never(_: Sequence[Submission]) -> None:
    """Nothing is at hand."""


def commits(log: Log, clock: Callable[[], float] = lambda: 0.0, at_hand: AtHand = never) -> Commits:
    """Commits over a log, in an event loop."""
    return Commits(cast("GroupCommit[Submission, Committed]", log), at_hand, asyncio.Event(), clock)


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is waited for."""
    monkeypatch.setattr("streams.engine.engine.PAUSES", wait_none())


def test_what_a_caller_brings_fails_at_once_and_counts_as_trouble_for_a_while() -> None:
    """The sender hears so and may come again; somebody has to, or nobody would ever know that there is room."""
    now = [100.0]

    async def work() -> tuple[str, str, str]:
        log = commits(Log(FULL, FULL), lambda: now[0])
        with pytest.raises(duckdb.IOException):
            await log.submit(Submission())
        soon = log.trouble
        now[0] += RECENT
        later = log.trouble
        with pytest.raises(duckdb.IOException):
            await log.submit(Submission())
        await log.submit(Submission())
        return soon, later, log.trouble

    assert ("the log did not take a record", "", "") == asyncio.run(work())


def test_what_comes_in_one_turn_of_the_event_loop_is_committed_together() -> None:
    """The thread that commits and the loop hold each other up: it begins when the loop has submitted all that it has."""

    async def work() -> list[int]:
        log = SleepingLog()
        over = commits(log)
        for _ in range(2):
            await asyncio.gather(*(over.submit(BROUGHT) for _ in range(5)))
        return log.groups

    assert [5, 5] == asyncio.run(work())


@pytest.mark.parametrize(
    ("count", "is_idle", "is_asleep", "at_once"),
    [(MANY, True, True, True), (MANY, False, False, False), (MANY - 1, True, True, False), (1, True, False, True)],
)
def test_the_event_loop_commits_large_groups_unless_the_thread_has_work(
    *, count: int, is_idle: bool, is_asleep: bool, at_once: bool
) -> None:
    """With many callers a change of threads costs more than it gains; but what was submitted first is committed first."""
    at_hand: list[int] = []

    def commit(group: Sequence[Submission]) -> list[Committed]:
        at_hand.append(len(group))
        return [Committed({}, {}, {}) for _ in group]

    async def work() -> list[int]:
        log = SleepingLog()
        log.is_idle, log.is_asleep = is_idle, is_asleep
        over = commits(log, at_hand=commit)
        await asyncio.gather(*(over.submit(BROUGHT) for _ in range(count)))
        return log.groups

    assert ([] if at_once else [count]) == asyncio.run(work())
    assert ([count] if at_once else []) == at_hand


def test_who_sends_alone_pays_no_change_of_threads() -> None:
    """One sender after the other is what a newcomer measures: from the second on nobody else is waited for."""
    at_hand: list[int] = []

    def commit(group: Sequence[Submission]) -> list[Committed]:
        at_hand.append(len(group))
        return [Committed({}, {}, {}) for _ in group]

    async def work() -> list[int]:
        log = SleepingLog()
        log.is_idle = log.is_asleep = True
        over = commits(log, at_hand=commit)
        for count in (1, 1, 1, 2, 1, 1):
            await asyncio.gather(*(over.submit(BROUGHT) for _ in range(count)))
        return log.groups

    assert [1, 2, 1] == asyncio.run(work())
    assert [1, 1, 1] == at_hand


def test_who_asks_for_a_landing_keeps_nobody_waiting() -> None:
    """A group with such a question in it would be the thread's, and be answered after the landing."""
    at_hand: list[int] = []

    def commit(group: Sequence[Submission]) -> list[Committed]:
        at_hand.append(len(group))
        return [Committed({}, {}, {}) for _ in group]

    async def work() -> list[int]:
        log = SleepingLog()
        over = commits(log, at_hand=commit)
        await asyncio.gather(over.submit(Submission()), *(over.submit(BROUGHT) for _ in range(MANY)))
        return log.groups

    assert [1] == asyncio.run(work())
    assert [MANY] == at_hand


def test_what_fails_at_hand_is_left_to_the_thread() -> None:
    """It tries each submission alone, so that a bad one costs no other."""

    def fail(_: Sequence[Submission]) -> list[Committed]:
        raise StoreError("1 of 2 rows were written")

    async def work() -> None:
        over = commits(log, at_hand=fail)
        await asyncio.gather(*(over.submit(BROUGHT) for _ in range(MANY)))

    log = Log()
    asyncio.run(work())
    assert MANY == log.tries


def test_what_the_engine_made_is_submitted_until_the_log_takes_it() -> None:
    """It was paid for; a full disk passes."""
    log = Log(FULL, StoreError("1 of 2 rows were written"), FULL)
    asyncio.run(commits(log).insist(Submission()))
    assert 4 == log.tries


def test_a_fault_of_ours_is_not_tried_again() -> None:
    """It would come to the same for ever, and hold its session up."""
    log = Log(duckdb.ConversionException("no number"))
    with pytest.raises(duckdb.ConversionException):
        asyncio.run(commits(log).insist(Submission()))
    assert 1 == log.tries


@pytest.mark.parametrize("failure", [FULL, DEAD])
def test_what_cannot_be_waited_for_any_longer_is_left_to_the_next_start(failure: Exception) -> None:
    """When the process stops, and when the database has to be opened anew."""

    async def work() -> None:
        log = commits(Log(*[failure] * 9))
        log.give_up()
        await log.insist(Submission())

    with pytest.raises(StoppedError):
        asyncio.run(work())


@pytest.fixture
def fragile(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Exception]]:
    """Failures of the next commits, in a list that a test fills."""
    failures: list[Exception] = []
    sound = LogWriter.commit

    def commit(self: LogWriter, group: Sequence[Submission]) -> Any:
        if failures:
            raise failures.pop(0)
        return sound(self, group)

    monkeypatch.setattr(LogWriter, "commit", commit)
    yield failures
    assert [] == failures


def test_a_database_that_gave_up_is_said_and_waits_end(fragile: list[Exception]) -> None:
    """Whoever runs the engine has to end the process; nothing may wait for what does not come."""

    async def work() -> tuple[bool, bool, str]:
        with Store(None) as store:
            async with engine_over(store) as engine:
                fragile.append(DEAD)
                with pytest.raises(duckdb.FatalException):
                    await engine.take_exchange(build.exchange("s", 1))
                with pytest.raises(StoreError, match="opened again"):
                    await engine.drained()
                state = engine.state()
                return engine.broken.is_set(), state.ready, state.why_not

    broken, ready, why_not = asyncio.run(asyncio.wait_for(work(), 60))
    assert (True, False, "the database has given up and has to be opened again") == (broken, ready, why_not)


def test_an_exchange_whose_score_the_log_did_not_take_at_first_is_scored_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was set aside as if something were wrong with it, and scoring stood still until the next start."""
    sound = LogWriter.commit
    failures = [FULL, FULL]

    def commit(self: LogWriter, group: Sequence[Submission]) -> Any:
        if failures and any("scores" in one.made.messages for one in group):
            raise failures.pop()
        return sound(self, group)

    async def work() -> tuple[int, int]:
        with Store(None) as store:
            async with engine_over(store, judge=MoodyJudge(0, lambda _: "{}")) as engine:
                await engine.take_exchange(build.exchange("s", 1))
                await engine.drained()
            return store.count("scores"), store.count("dead_letters")

    monkeypatch.setattr(LogWriter, "commit", commit)
    assert (1, 0) == asyncio.run(asyncio.wait_for(work(), 60))
    assert [] == failures


def test_a_computed_stage_that_the_tables_stopped_goes_on_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a judge, scoring is work that can wait: a disk that was full for a moment costs a delay and nothing else."""
    sound = EmbeddedRunner.advance
    failures = [FULL, FULL]

    def advance(self: EmbeddedRunner, stage: Stage) -> int:
        if failures and stage.name == "scoring":
            raise failures.pop()
        return sound(self, stage)

    async def work() -> tuple[int, int]:
        with Store(None) as store:
            async with engine_over(store) as engine:
                await engine.take_exchange(build.exchange("s", 1))
                await engine.drained()
            return store.count("scores"), store.count("dead_letters")

    monkeypatch.setattr("streams.log.log_writer.AGAIN_SECONDS", 0.01)
    monkeypatch.setattr(EmbeddedRunner, "advance", advance)
    assert (1, 0) == asyncio.run(asyncio.wait_for(work(), 60))
    assert [] == failures
