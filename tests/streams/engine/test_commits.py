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
DISK_FULL = duckdb.IOException("No space left on device")
INVALIDATED = duckdb.FatalException("database has been invalidated")
NO_TIMED_FLUSH = EngineLimits(flush_seconds=1e9)
TIMEOUT_SECONDS = 60


ORIGINAL_APPEND = LocalLog.append


class AppendFailures:
    """Makes the next appends to the log fail with `errors`, in order.

    `group_sizes` has the number of exchanges of each append that succeeded.
    """

    def __init__(self) -> None:
        self.errors: list[Exception] = []
        self.group_sizes: list[int] = []
        self.applies_to: Callable[[Commit], bool] = lambda _: True

    async def append(self, log: LocalLog, commit: Commit, records: Mapping[str, Sequence[Record]]) -> None:
        """Raise the next error if it applies to the commit; otherwise append as the log does."""
        if self.errors and self.applies_to(commit):
            raise self.errors.pop(0)
        self.group_sizes.append(len(commit.records.get("exchanges", ())))
        await ORIGINAL_APPEND(log, commit, records)


@pytest.fixture
def failures(monkeypatch: pytest.MonkeyPatch) -> AppendFailures:
    """Return the failures of every engine's log."""
    failures = AppendFailures()
    monkeypatch.setattr(LocalLog, "append", lambda log, *arguments: failures.append(log, *arguments))  # noqa: PLW0108 - a method would not be bound to the log
    return failures


@pytest.fixture(autouse=True)
def _no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the pauses between attempts."""
    monkeypatch.setattr("streams.engine.engine.COMMIT_BACKOFF", wait_none())


def run_with_engine(
    work: Callable[[Engine], Awaitable[T]], clock: Callable[[], float] = lambda: 0.0, judge: Judge | None = None
) -> T:
    """Run `work` with an engine over an in-memory database and return its result."""

    async def start_and_work(store: Store) -> T:
        engine = Engine(
            store, Policy(), Redactor(Policy().redaction), TickingClock(), judge=judge, limits=NO_TIMED_FLUSH, clock=clock
        )
        await engine.start()
        try:
            return await work(engine)
        finally:
            await engine.stop()

    with Store(None) as store:
        return asyncio.run(asyncio.wait_for(start_and_work(store), TIMEOUT_SECONDS))


def test_an_append_error_fails_the_call_and_marks_the_log_unhealthy(failures: AppendFailures) -> None:
    """The sender gets an error and may retry; its retry shows whether the log works again."""
    now = [100.0]

    async def work(engine: Engine) -> None:
        failures.errors = [DISK_FULL, DISK_FULL]
        with pytest.raises(duckdb.IOException):
            await engine.ingest_exchange(build.exchange("s", 1))
        assert "did not accept a record" in engine.state().not_ready_reason
        now[0] += UNREADY_SECONDS
        assert engine.state().ready
        with pytest.raises(duckdb.IOException):
            await engine.ingest_exchange(build.exchange("s", 1))
        result = await engine.ingest_exchange(build.exchange("s", 1))
        assert result.outcome == "written"
        assert engine.state().ready

    run_with_engine(work, lambda: now[0])


def test_records_of_one_event_loop_turn_are_committed_together(failures: AppendFailures) -> None:
    """A commit is synced to disk, which takes as long for one record as for a hundred."""

    async def work(engine: Engine) -> None:
        for session in "st":
            await asyncio.gather(*(engine.ingest_exchange(build.exchange(session, number)) for number in range(1, 6)))

    run_with_engine(work)
    assert [count for count in failures.group_sizes if count] == [5, 5]


def test_a_failing_submission_does_not_affect_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """If a group of submissions fails, each of them is tried alone."""
    build_commit = Engine._build_commit

    def fail_on_third_exchange(engine: Engine, group: Sequence[Submission], *arguments: Any) -> Commit:
        exchanges = [record for submission in group for record in submission.records.get("exchanges", ())]
        if build.exchange("s", 3) in exchanges:
            raise ZeroDivisionError
        return build_commit(engine, group, *arguments)

    async def work(engine: Engine) -> list[str]:
        exchanges = (engine.ingest_exchange(build.exchange("s", number)) for number in range(1, 6))
        results = await asyncio.gather(*exchanges, return_exceptions=True)
        return ["failed" if isinstance(result, BaseException) else result.outcome for result in results]

    monkeypatch.setattr(Engine, "_build_commit", fail_on_third_exchange)
    assert run_with_engine(work) == ["written", "written", "failed", "written", "written"]


async def commit_position(engine: Engine) -> None:
    """Commit a record of a stage."""
    await engine._retry(engine._submit, Submission(commit=Commit(positions={"diagnosis": {0: 0}})))


def test_a_stage_record_is_retried_until_the_log_accepts_it(failures: AppendFailures) -> None:
    """A judgement costs money, and a full disk is temporary."""

    async def work(engine: Engine) -> None:
        failures.errors = [DISK_FULL, StoreError("1 of 2 rows were written"), DISK_FULL]
        await commit_position(engine)

    run_with_engine(work)
    assert failures.errors == []


def test_a_bug_is_not_retried(failures: AppendFailures) -> None:
    """A bug would fail forever and block its session."""

    async def work(engine: Engine) -> None:
        failures.errors = [duckdb.ConversionException("no number")]
        with pytest.raises(duckdb.ConversionException):
            await commit_position(engine)

    run_with_engine(work)
    assert failures.errors == []


@pytest.mark.parametrize("failure", [DISK_FULL, INVALIDATED])
def test_a_record_that_cannot_be_committed_is_left_to_the_next_start(failures: AppendFailures, failure: Exception) -> None:
    """A stopping engine gives up; after the next start, the stage processes the record again."""

    async def work(engine: Engine) -> None:
        failures.errors = [failure] * 9
        engine._abandoned.set()
        with pytest.raises(StoppedError):
            await commit_position(engine)

    run_with_engine(work)


def test_a_broken_database_is_reported_and_ends_every_wait(failures: AppendFailures) -> None:
    """The process has to end, and no caller may wait indefinitely."""

    async def work(engine: Engine) -> None:
        failures.errors = [INVALIDATED]
        with pytest.raises(duckdb.FatalException):
            await engine.ingest_exchange(build.exchange("s", 1))
        with pytest.raises(StoreError, match="must be reopened"):
            await engine.wait_until_drained()
        state = engine.state()
        assert engine.broken.is_set()
        assert not state.ready
        assert "must be reopened" in state.not_ready_reason

    run_with_engine(work)


def test_an_exchange_is_scored_although_its_first_commit_failed(failures: AppendFailures) -> None:
    """The exchange must not become a dead letter, and scoring must continue without a restart."""

    async def work(engine: Engine) -> None:
        failures.applies_to = lambda commit: "scores" in commit.records
        failures.errors = [DISK_FULL, DISK_FULL]
        await engine.ingest_exchange(build.exchange("s", 1))
        await engine.wait_until_drained()
        assert engine.store.count("scores") == 1
        assert engine.store.count("dead_letters") == 0

    run_with_engine(work, judge=MoodyJudge(0, lambda _: "{}"))
    assert failures.errors == []


def test_a_stage_resumes_by_itself_after_the_tables_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporarily full disk only delays scoring."""
    read_next_batch = engine_module.read_next_batch
    errors = [DISK_FULL, DISK_FULL]

    def read_or_fail(store: Store, source: str, *arguments: int) -> Any:
        if errors and source == "scoring-tasks":
            raise errors.pop()
        return read_next_batch(store, source, *arguments)

    async def work(engine: Engine) -> None:
        await engine.ingest_exchange(build.exchange("s", 1))
        await engine.wait_until_drained()
        assert engine.store.count("scores") == 1
        assert engine.store.count("dead_letters") == 0

    monkeypatch.setattr(engine_module, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(engine_module, "read_next_batch", read_or_fail)
    run_with_engine(work)
    assert errors == []
