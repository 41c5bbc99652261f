"""A failing log: callers' records fail, a stage's records are retried, and a broken database is reported."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

import duckdb
import pytest
from support import builders as build
from support.clocks import TickingClock
from support.engines import MoodyJudge
from tenacity import wait_none

import streams.engine.engine as engine_module
from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.errors import StoreError
from schemas.records import Record
from streams.engine.engine import UNREADY_SECONDS, Engine
from streams.engine.record_intake import EngineLimits
from streams.judges.protocol import Judge
from streams.judging.call_budget import StoppedError
from streams.log.local_log import LocalLog
from streams.log.log import Commit, Submission

T = TypeVar("T")
FULL = duckdb.IOException("No space left on device")
DEAD = duckdb.FatalException("database has been invalidated")
NEVER = EngineLimits(flush_seconds=1e9)


class Failures:
    """Makes the next appends to the log fail with `errors`, in order; `groups` counts the records of successful ones."""

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.groups: list[int] = []
        self.is_due: Callable[[Commit], bool] = lambda _: True

    async def append(self, log: LocalLog, commit: Commit, records: Mapping[str, Sequence[Record]]) -> None:
        """Fail, or append as the log does."""
        if self.errors and self.is_due(commit):
            raise self.errors.pop(0)
        self.groups.append(len(commit.records.get("exchanges", ())))
        await APPEND(log, commit, records)


APPEND = LocalLog.append


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> Failures:
    """Return the failures that all engines' logs raise."""
    failures = Failures()
    monkeypatch.setattr(LocalLog, "append", lambda log, *given: failures.append(log, *given))  # noqa: PLW0108 - a method would not be bound to the log
    return failures


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the pauses between tries."""
    monkeypatch.setattr("streams.engine.engine.COMMIT_BACKOFF", wait_none())


def run(
    work: Callable[[Engine], Awaitable[T]], clock: Callable[[], float] = lambda: 0.0, judge: Judge | None = None
) -> tuple[T, Store]:
    """Run work with an engine over a database in memory, with a generous time limit."""

    async def over(store: Store) -> T:
        engine = Engine(store, Policy(), Redactor(Policy().redaction), TickingClock(), judge=judge, limits=NEVER, clock=clock)
        await engine.start()
        try:
            return await work(engine)
        finally:
            await engine.stop()

    with Store(None) as store:
        return asyncio.run(asyncio.wait_for(over(store), 60)), store


def test_an_append_error_fails_the_call_and_marks_the_log_unhealthy(failures: Failures) -> None:
    """The sender gets an error and may retry; its retry shows whether the log works again."""
    now = [100.0]

    async def work(engine: Engine) -> tuple[str, str, str]:
        failures.errors = [FULL, FULL]
        with pytest.raises(duckdb.IOException):
            await engine.ingest_exchange(build.exchange("s", 1))
        soon = engine.state().not_ready_reason
        now[0] += UNREADY_SECONDS
        later = engine.state().not_ready_reason
        with pytest.raises(duckdb.IOException):
            await engine.ingest_exchange(build.exchange("s", 1))
        assert (await engine.ingest_exchange(build.exchange("s", 1))).outcome == "written"
        return soon, later, engine.state().not_ready_reason

    assert run(work, lambda: now[0])[0] == ("the log did not accept a record", "", "")


def test_records_of_one_event_loop_turn_are_committed_together(failures: Failures) -> None:
    """A commit is synced to disk, which takes as long for one record as for a hundred."""

    async def work(engine: Engine) -> None:
        for session in "st":
            await asyncio.gather(*(engine.ingest_exchange(build.exchange(session, number)) for number in range(1, 6)))

    run(work)
    assert [count for count in failures.groups if count] == [5, 5]


def test_a_failing_submission_does_not_affect_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a failure together, each submission is tried alone."""
    encode = Engine._build_commit

    def fragile(engine: Engine, group: Sequence[Submission], *arguments: Any) -> Commit:
        if any(record.exchange_id == "s:3" for entry in group for record in entry.records.get("exchanges", ())):  # type: ignore[attr-defined]
            raise ZeroDivisionError("ours")
        return encode(engine, group, *arguments)

    async def work(engine: Engine) -> list[str]:
        exchanges = (engine.ingest_exchange(build.exchange("s", number)) for number in range(1, 6))
        answers = await asyncio.gather(*exchanges, return_exceptions=True)
        return ["failed" if isinstance(answer, BaseException) else answer.outcome for answer in answers]

    monkeypatch.setattr(Engine, "_build_commit", fragile)
    assert run(work)[0] == ["written", "written", "failed", "written", "written"]


async def commit_position(engine: Engine) -> None:
    """Commit a record of a stage."""
    await engine._retry(engine._submit, Submission(commit=Commit(positions={"diagnosis": {0: 0}})))


def test_a_stage_record_is_retried_until_the_log_accepts_it(failures: Failures) -> None:
    """The record was paid for, and a full disk is temporary."""

    async def work(engine: Engine) -> None:
        failures.errors = [FULL, StoreError("1 of 2 rows were written"), FULL]
        await commit_position(engine)

    run(work)
    assert failures.errors == []


def test_a_bug_is_not_retried(failures: Failures) -> None:
    """A bug would fail forever and block its session."""

    async def work(engine: Engine) -> None:
        failures.errors = [duckdb.ConversionException("no number")]
        with pytest.raises(duckdb.ConversionException):
            await commit_position(engine)

    run(work)
    assert failures.errors == []


@pytest.mark.parametrize("failure", [FULL, DEAD])
def test_a_record_that_cannot_be_committed_is_left_to_the_next_start(failures: Failures, failure: Exception) -> None:
    """This holds for a stop and for a database that must be reopened."""

    async def work(engine: Engine) -> None:
        failures.errors = [failure] * 9
        engine._abandoned.set()
        with pytest.raises(StoppedError):
            await engine._retry(fail, failure)

    async def fail(error: Exception) -> None:
        raise error

    run(work)


def test_a_broken_database_is_reported_and_ends_every_wait(failures: Failures) -> None:
    """The process has to end, and no caller may wait indefinitely."""

    async def work(engine: Engine) -> tuple[bool, bool, str]:
        failures.errors = [DEAD]
        with pytest.raises(duckdb.FatalException):
            await engine.ingest_exchange(build.exchange("s", 1))
        with pytest.raises(StoreError, match="must be reopened"):
            await engine.wait_until_drained()
        state = engine.state()
        return engine.broken.is_set(), state.ready, state.not_ready_reason

    is_broken, is_alive, error = run(work)[0]
    assert is_broken
    assert not is_alive
    assert "must be reopened" in error


def test_an_exchange_is_scored_although_its_first_commit_failed(failures: Failures) -> None:
    """The exchange must not become a dead letter, and scoring must continue without a restart."""

    async def work(engine: Engine) -> tuple[int, int]:
        failures.is_due = lambda commit: "scores" in commit.records
        failures.errors = [FULL, FULL]
        await engine.ingest_exchange(build.exchange("s", 1))
        await engine.wait_until_drained()
        return engine.store.count("scores"), engine.store.count("dead_letters")

    assert run(work, judge=MoodyJudge(0, lambda _: "{}"))[0] == (1, 0)
    assert failures.errors == []


def test_a_stage_resumes_by_itself_after_the_tables_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a judge, a temporarily full disk only delays scoring."""
    sound = engine_module.read_next_batch
    errors = [FULL, FULL]

    def read_next_batch(store: Store, source: str, *rest: int) -> Any:
        if errors and source == "scoring-tasks":
            raise errors.pop()
        return sound(store, source, *rest)

    async def work(engine: Engine) -> tuple[int, int]:
        await engine.ingest_exchange(build.exchange("s", 1))
        await engine.wait_until_drained()
        return engine.store.count("scores"), engine.store.count("dead_letters")

    monkeypatch.setattr(engine_module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(engine_module, "read_next_batch", read_next_batch)
    assert run(work)[0] == (1, 0)
    assert errors == []
