"""The local log: records are durable before they are in the tables, are flushed once, and do not change decisions."""

from __future__ import annotations

import asyncio
import shutil
import tarfile
import threading
from collections.abc import Coroutine, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support import builders as build
from support.clocks import NOW, TickingClock
from support.engines import HangingJudge, MoodyJudge, engine_over, policy_of
from support.store_fixtures import *  # noqa: F403 - pytest finds fixtures by their names here

from analytics.store.positions import WRITE_AHEAD_LOG
from analytics.store.store import Store
from audit.cost import Usage
from audit.exchanges.questions import Question
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.errors import StoreError
from schemas.records import Erasure, Exchange, Heartbeat, JudgingRequest, Record
from service.setup.access import AccessStore
from service.web.bounds import ApiSettings
from service.web.context import ApiContext, Metrics
from streams.engine.embedded import EmbeddedRunner
from streams.engine.engine import Engine
from streams.engine.record_intake import EngineLimits, IngestResult
from streams.judges.protocol import CallBudget, Verdict
from streams.log.admission import EncodedRecords
from streams.log.local_log import LocalLog, local_log, recover_closed
from streams.log.log import Commit, log_folder
from streams.log.sink import write_commits
from streams.stage_progress import lagging

SCORES = "SELECT * EXCLUDE (_partition, _offset) FROM log.scores ORDER BY connection, exchange_id, revision"
EXCHANGES = "SELECT * EXCLUDE (_offset) FROM log.exchanges ORDER BY _offset"
TURNS = 6


def runner_of(store: Store) -> EmbeddedRunner:
    """Return an embedded runner as commands use it."""
    policy = Policy()
    return EmbeddedRunner(store, policy, Redactor(policy.redaction), TickingClock())


def rows(store: Store, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a statement."""
    return store.cursor().execute(statement).fetchall()


def by_the_runner(topic: str, records: Sequence[Record], *statements: str) -> tuple[list[tuple[Any, ...]], ...]:
    """Return the rows of statements after publishing the records one by one without a log, then running the stages."""
    with Store(None) as store:
        runner = EmbeddedRunner(store, policy_of(), Redactor(Policy().redaction), TickingClock())
        for record in records:
            accepted = EncodedRecords()
            accepted.add(topic, encode(record))
            runner.publish(accepted)
        runner.run()
        return tuple(rows(store, statement) for statement in statements)


def turns(session: str, count: int = TURNS) -> list[Exchange]:
    """Return the exchanges of a session."""
    return [build.exchange(session, number) for number in range(1, count + 1)]


def commit_of(*exchanges: Exchange) -> Commit:
    """Return a commit of exchanges at the start of their topic."""
    return Commit({"exchanges": [encode(exchange) for exchange in exchanges]}, {"exchanges": 0})


def killed(log: LocalLog) -> None:
    """Close the folder of a log without flushing, as a kill does."""
    assert log._folder is not None
    log._folder.close()


def erasure_of(session: str) -> Erasure:
    """Return a request to erase a session."""
    connection = build.exchange(session, 1).connection
    return Erasure(
        erasure_id="1", connection=connection, session_id=session, requested_by="me", occurred_at=NOW, ingested_at=NOW
    )


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine in a new event loop."""
    return asyncio.run(work)


def assert_nothing_is_there_twice(store: Store) -> None:
    """Assert that each identity is in its table once."""
    identities = {
        "exchanges": "connection, exchange_id",
        "scoring_tasks": "connection, exchange_id, revision",
        "scores": "score_id, revision",
        "judgements": "judgement_id",
    }
    for table, identity in identities.items():
        assert rows(store, f"SELECT 1 FROM log.{table} LIMIT 1")
        assert not rows(store, f"SELECT 1 FROM log.{table} GROUP BY {identity} HAVING count(*) > 1"), table


KILLED = Path(__file__).parents[2] / "corpus" / "database" / "killed-0.2.0.tar.gz"
NEVER = EngineLimits(flush_seconds=1e9)
"""Nothing is flushed by itself."""


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Return the path for a copy of an open database, as a kill would leave it."""
    folder = tmp_path / "after"
    folder.mkdir()
    return folder / "store.duckdb"


async def all_judged(engine: Engine) -> None:
    """Return when no task waits to be judged, without flushing the results."""
    while sum(engine.state().queues.values()):  # noqa: ASYNC110 - nothing tells that the tables show no work
        await asyncio.sleep(0)


async def judged_in_the_log(engine: Engine) -> None:
    """Ingest a session and judge it; its judgements and scores are only in the log."""
    await engine.ingest_exchanges(turns("s"))
    await engine.flush()
    await all_judged(engine)


def copy_of(store: Store, to: Path) -> None:
    """Copy a database with its logs while a process has it open."""
    assert store.path is not None
    shutil.copy(store.path, to)
    for beside in (".wal",):
        if (beside_path := store.path.with_name(store.path.name + beside)).exists():
            shutil.copy(beside_path, to.with_name(to.name + beside))
    shutil.copytree(log_folder(store.path), log_folder(to))
    (log_folder(to) / "LOCK").unlink()


def test_an_exchange_is_durable_before_it_is_in_the_tables(store: Store, copied: Path) -> None:
    """A 201 promises durability: after a kill before the first flush, the next process shows every record."""

    async def work() -> None:
        async with engine_over(store, limits=NEVER) as engine:
            for exchange in turns("s"):
                await engine.ingest_exchange(exchange)
            assert store.count("exchanges") == 0
            copy_of(store, copied)

    run(work())
    with Store(copied) as later:
        assert later.count("exchanges") == 0
        assert recover_closed(later) >= TURNS
        assert later.count("exchanges") == TURNS
        assert not log_folder(copied).exists()
        assert recover_closed(later) == 0, "it lands once"


def test_a_clean_stop_completes_every_stage(store: Store) -> None:
    """After a clean stop, the last records are scored and diagnosed, and a replay may begin."""

    async def work() -> None:
        async with engine_over(store, limits=NEVER) as engine:
            await engine.ingest_exchanges(turns("s"))
            await engine.publish("agent-events", [build.event("s", 1), build.event("s", 2)])

    run(work())
    assert lagging(store) == []
    assert store.count("scores") == TURNS


def test_a_clean_stop_leaves_no_log_files(store: Store) -> None:
    """A copy of a stopped server's database file must be complete."""

    async def work() -> None:
        async with engine_over(store, limits=NEVER) as engine:
            await engine.ingest_exchanges(turns("s"))
            assert log_folder(store.path or Path()).exists()

    run(work())
    assert not log_folder(store.path or Path()).exists()
    assert store.count("exchanges") == TURNS


@given(
    order=st.permutations([(session, number) for session in "abc" for number in range(1, 5)]),
    sizes=st.lists(st.integers(1, 5), min_size=12, max_size=12),
    repeats=st.lists(st.tuples(st.integers(0, 11), st.booleans()), max_size=4),
)
def test_the_log_does_not_change_decisions(
    tmp_path_factory: pytest.TempPathFactory,
    empty_file: Path,
    order: Sequence[tuple[str, int]],
    sizes: Sequence[int],
    repeats: Sequence[tuple[int, bool]],
) -> None:
    """However records are split into calls, answers and rows equal those without a log."""
    records = [build.exchange(*arguments) for arguments in order]
    for position, differs in repeats:
        records.append(build.exchange(*order[position], **({"response": "Something else."} if differs else {})))

    async def taken_by(store: Store) -> list[object]:
        answers: list[object] = []
        async with engine_over(store, policy_of()) as engine:
            start = 0
            for size in [*sizes, len(records)]:
                answers += await engine.ingest_exchanges(records[start : start + size]) if records[start : start + size] else []
                start += size
            await engine.wait_until_drained()
        # What a repetition says of the cap depends on whether its exchange is scored by then.
        return [
            replace(answer, spent_usd=0.0, cap_usd=None) if isinstance(answer, IngestResult) else answer for answer in answers
        ]

    def outcome(path: Path | None) -> tuple[list[object], list[tuple[Any, ...]], list[tuple[Any, ...]]]:
        with Store(path) as store:
            answers = run(taken_by(store))
            return answers, rows(store, SCORES), rows(store, EXCHANGES)

    path = Path(shutil.copy(empty_file, tmp_path_factory.mktemp("law") / "store.duckdb"))
    in_memory = outcome(None)
    assert in_memory == outcome(path)
    assert in_memory[1:] == by_the_runner("exchanges", records, SCORES, EXCHANGES)


def test_a_duplicate_within_one_call_gets_the_full_answer(store: Store) -> None:
    """A duplicate within one call gets the full answer even before the first is in the tables."""

    async def work() -> None:
        async with engine_over(store, limits=NEVER) as engine:
            results = await engine.ingest_exchanges(turns("s", 30) * 2)
            assert store.count("exchanges") == 0
        results = [result for result in results if isinstance(result, IngestResult)]
        assert {result.sampled for result in results} == {True, False}
        assert results[30:] == [replace(first, outcome="known") for first in results[:30]]

    run(work())


def test_pending_tasks_are_scored_before_later_ones(store: Store) -> None:
    """A session's tasks are scored in order: an overtaking task would mark earlier ones as done."""

    async def with_a_judge() -> None:
        judge = HangingJudge()
        engine = Engine(store, Policy(), Redactor(Policy().redaction), TickingClock(), judge=judge)
        await engine.start()
        await engine.ingest_exchanges(turns("s", 3))
        await judge.asked.wait()
        await engine.stop(0)

    async def without() -> None:
        async with engine_over(store) as engine:
            await engine.ingest_exchanges([*turns("s", 5)[3:], build.exchange("t", 1)])
            await engine.wait_until_drained()

    run(with_a_judge())
    assert store.count("scores") == 0
    run(without())
    scored = rows(store, "SELECT session_id, list(exchange_id ORDER BY _offset) FROM log.scores GROUP BY ALL ORDER BY ALL")
    assert scored == [("s", [f"s:{number}" for number in range(1, 6)]), ("t", ["t:1"])]


def test_every_record_is_durable_before_it_is_in_the_tables(store: Store, copied: Path) -> None:
    """Events and heartbeats are as durable as exchanges."""
    connection = build.exchange("s", 1).connection
    sign = Heartbeat(connection=connection, project="p", agent="a", session_id="s", occurred_at=NOW, ingested_at=NOW)

    async def work() -> None:
        async with engine_over(store, limits=NEVER) as engine:
            await engine.ingest_exchange(build.exchange("s", 1))
            await engine.flush()
            await engine.publish("agent-events", [build.event("s", 1), build.event("s", 2)])
            await engine.publish("heartbeats", [sign])
            assert [store.count("agent_events"), store.count("heartbeats")] == [0, 0]
            assert (await engine.publish("agent-events", [build.event("s", 1), build.event("s", 2)])).known == 2
            await engine.publish("agent-events", [build.event("t", 1)])
            copy_of(store, copied)

    run(work())
    with Store(copied) as later:
        recover_closed(later)
        assert [later.count("agent_events"), later.count("heartbeats")] == [3, 1]


@given(
    order=st.permutations([(session, number) for session in "ab" for number in range(1, 5)]),
    sizes=st.lists(st.tuples(st.integers(1, 3), st.booleans()), min_size=8, max_size=8),
    repeats=st.lists(st.tuples(st.integers(0, 7), st.booleans()), max_size=4),
)
def test_the_log_does_not_change_answers_about_events(
    tmp_path_factory: pytest.TempPathFactory,
    empty_file: Path,
    order: Sequence[tuple[str, int]],
    sizes: Sequence[tuple[int, bool]],
    repeats: Sequence[tuple[int, bool]],
) -> None:
    """However events are split into calls and flushes, answers, rows and diagnoses equal those without a log."""
    records = [build.event(*arguments) for arguments in order]
    records += [build.event(*order[place], **({"type": "another"} if differs else {})) for place, differs in repeats]

    async def taken_by(store: Store) -> list[object]:
        answers: list[object] = []
        async with engine_over(store, policy_of(), now=lambda: NOW) as engine:
            start = 0
            for size, lands in [*sizes, (len(records), True)]:
                answers.append(await engine.publish("agent-events", records[start : start + size]))
                start += size
                if lands:
                    await engine.flush()
            await engine.flush()
            assert await engine.finalize(records[0].connection, "a")
        return answers

    def outcome(path: Path | None) -> tuple[object, ...]:
        with Store(path) as store:
            answers = run(taken_by(store))
            runner_of(store).run()
            tables = [rows(store, f"SELECT * FROM log.{table} ORDER BY _offset") for table in ("agent_events", "diagnoses")]
            assert tables[1]
            return answers, *tables

    path = Path(shutil.copy(empty_file, tmp_path_factory.mktemp("law") / "store.duckdb"))
    assert outcome(None) == outcome(path)


def test_a_request_to_rejudge_uses_recorded_answers(store: Store) -> None:
    """Without a judge, new exchanges stay unscored, and judged ones keep their recorded answers."""
    exchange = build.exchange("s", 1)
    request = JudgingRequest(
        connection=exchange.connection,
        project=exchange.project,
        session_id=exchange.session_id,
        exchange_id=exchange.exchange_id,
        revision=1,
        exchange=encode(exchange),
        turn_number=1,
        sampling_reason="first_turns",
        sampling_probability=1.0,
        ingested_at=NOW,
    )

    async def work() -> None:
        async with engine_over(store, judge=MoodyJudge(1, lambda _: "{}")) as engine:
            await engine.ingest_exchange(exchange)
            await engine.wait_until_drained()

    async def again() -> None:
        async with engine_over(store, limits=NEVER) as engine:
            await engine.publish("exchanges", [request])
            await engine.wait_until_drained()

    run(work())
    run(again())
    assert [outcome for (outcome,) in rows(store, "SELECT outcome FROM log.judgements WHERE purpose = 'tier2'")] == ["answered"]
    first, second = rows(store, "SELECT tier2_state, tier2_reason FROM log.scores ORDER BY revision")
    assert first == second


def test_decisions_are_flushed_beside_earlier_judgements(store: Store) -> None:
    """A commit without records from outside must not shift the offsets of later records."""

    async def work() -> None:
        async with engine_over(store, judge=MoodyJudge(0, lambda _: "{}"), limits=NEVER) as engine:
            await judged_in_the_log(engine)
            await engine.ingest_exchanges(turns("t"))
            await engine.flush()
            assert store.count("exchanges") == 2 * TURNS

    run(work())
    assert_nothing_is_there_twice(store)


def test_erasures_and_incidents_are_in_the_tables_at_once(store: Store) -> None:
    """An erasure applies from its acknowledgement, and an incident is derived from the previous one."""

    async def work() -> None:
        async with engine_over(store, limits=NEVER) as engine:
            await engine.publish("incidents", [build.incident()])
            await engine.publish("erasures", [erasure_of("s")])
            assert [store.count("incidents"), store.count("erasures")] == [1, 1]

    run(work())


def test_a_failed_flush_is_reported_and_retried(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A temporarily full disk only delays flushing: no accepted record is lost, and the health check shows the problem."""

    def full(*_: object, **__: object) -> None:
        raise duckdb.IOException("No space left on device")

    async def work() -> None:
        async with engine_over(store, limits=EngineLimits(flush_seconds=0.01)) as engine:
            with monkeypatch.context() as patched:
                patched.setattr("streams.log.local_log.write_commits", full)
                patched.setattr("streams.log.local_log.RETRY_SECONDS", 0.01)
                await engine.ingest_exchanges(turns("s"))
                while not engine.state().not_ready_reason:  # noqa: ASYNC110 - nothing tells that a flush has failed
                    await asyncio.sleep(0)
                assert "No space left" in engine.state().not_ready_reason
                assert (await engine.ingest_exchange(build.exchange("t", 1))).outcome == "written"
            await engine.flush()
            assert store.count("exchanges") == TURNS + 1
            assert not engine.state().not_ready_reason

    run(work())


@pytest.mark.parametrize("moment", ["before", "after"])
def test_records_that_arrive_during_a_flush_are_accepted_and_flushed_next(
    store: Store, copied: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    """Senders do not wait for a slow flush, and a kill during it neither loses nor duplicates records."""
    has_begun, may_end = threading.Event(), threading.Event()

    def slow(*given: Any, **named: Any) -> None:
        if moment == "after":
            write_commits(*given, **named)
        has_begun.set()
        assert may_end.wait(60)
        if moment == "before":
            write_commits(*given, **named)

    async def work() -> None:
        async with engine_over(store) as engine:
            await engine.ingest_exchanges(turns("s", 3))
            await engine.flush()
            monkeypatch.setattr("streams.log.local_log.write_commits", slow)
            await engine.ingest_exchanges(turns("s", 4)[3:])
            flushing = asyncio.create_task(engine.flush())
            await asyncio.to_thread(has_begun.wait, 60)
            results = [await engine.ingest_exchange(exchange) for exchange in turns("s")[4:]]
            results += [await engine.ingest_exchange(build.exchange("t", 1))]
            assert [answer.outcome for answer in results] == ["written"] * 3
            copy_of(store, copied)
            may_end.set()
            await flushing
            assert (await engine.ingest_exchange(turns("s")[-1])).outcome == "known"
            await engine.wait_until_drained()

    run(work())
    with Store(copied) as later:
        recover_closed(later)
        runner_of(later).run()
        assert later.count("exchanges") == store.count("exchanges") == TURNS + 1
        for table in ("scoring_tasks", "scores"):
            statement = f"SELECT * EXCLUDE (_offset) FROM log.{table} ORDER BY ALL"
            assert rows(store, statement) == rows(later, statement)


def test_an_unwritable_log_accepts_nothing_and_recovers(store: Store) -> None:
    """The sender gets an error and retries; a full disk needs no restart."""
    folder = log_folder(store.path or Path())

    async def work() -> None:
        async with engine_over(store) as engine:
            folder.write_text("in the way")
            with pytest.raises(StoreError, match=folder.name):
                await engine.ingest_exchange(build.exchange("s", 1))
            folder.unlink()
            assert (await engine.ingest_exchange(build.exchange("s", 1))).outcome == "written"

    run(work())
    assert store.count("exchanges") == 1


def test_pending_records_of_an_erased_session_are_not_flushed(store: Store, copied: Path) -> None:
    """An erasure also covers pending records; other sessions are flushed with unchanged decisions."""

    async def work() -> None:
        async with engine_over(store, limits=NEVER) as engine:
            for number in range(1, TURNS + 1):
                await engine.ingest_exchanges([build.exchange("gone", number), build.exchange("stays", number)])
            copy_of(store, copied)

    run(work())
    with Store(copied) as later:
        with later.transaction() as transaction:
            transaction.append("erasures", [encode(erasure_of("gone"))])
        recover_closed(later)
        assert rows(later, "SELECT session_id, count(*) FROM log.exchanges GROUP BY ALL") == [("stays", TURNS)]
        assert rows(later, "SELECT DISTINCT session_id FROM log.scores") == [("stays",)]
        assert not rows(later, "SELECT key FROM log.stage_state WHERE key LIKE '%gone'")


def test_commits_already_in_the_tables_are_skipped_by_their_number(store: Store) -> None:
    """A kill between the commit of the rows and the deletion of the entries must not duplicate rows."""
    log = local_log(store)
    log.recover()
    run(log.append(commit_of(build.exchange("s", 1)), {}))
    write_commits(store, *log.pending)
    killed(log)
    with closing(local_log(store)) as reopened:
        assert reopened.recover() == 0
        assert not reopened.waiting()
    assert store.count("exchanges") == 1


def test_an_older_copy_of_the_database_is_refused(store: Store) -> None:
    """Flushing into an older copy would leave an unnoticed gap."""
    with store.transaction() as transaction:
        transaction.set_watermark(WRITE_AHEAD_LOG, "", 7)
    log = local_log(store)
    log.read()
    run(log.append(Commit(), {}))
    killed(log)
    with store.transaction() as transaction:
        transaction.set_watermark(WRITE_AHEAD_LOG, "", 0)
    with pytest.raises(StoreError, match=r"entry 7, .* entry 0") as refused:
        recover_closed(store)
    assert "Restore the matching database" in refused.value.hint


def test_a_log_deleted_after_a_clean_stop_is_not_missed(store: Store) -> None:
    """After a clean stop the tables have everything, so the file alone is a complete copy."""

    async def work(session: str) -> str:
        async with engine_over(store) as engine:
            await engine.ingest_exchanges(turns(session))
            return (await engine.ingest_exchange(build.exchange("s", 1))).outcome

    run(work("s"))
    shutil.rmtree(log_folder(store.path or Path()), ignore_errors=True)
    assert run(work("t")) == "known"
    assert store.count("exchanges") == 2 * TURNS


def test_a_damaged_log_is_refused_and_left_unchanged(store: Store, copied: Path) -> None:
    """A damaged log must not be read in part, and its bytes are needed for a repair."""
    log = local_log(store)
    log.read()
    for number in range(3):
        run(log.append(Commit({"exchanges": [b"an exchange that was accepted"]}, {"exchanges": number}), {}))
    copy_of(store, copied)
    (written,) = log_folder(copied).glob("*.log")
    damaged = bytearray(written.read_bytes())
    damaged[damaged.index(b"accepted")] ^= 0xFF
    written.write_bytes(damaged)
    with Store(copied) as later:
        with pytest.raises(StoreError, match="cannot be opened") as refused:
            recover_closed(later)
        assert "damaged" in refused.value.hint
    assert bytes(damaged) == written.read_bytes()


class LandingJudge:
    """A judge that flushes the log between its reservation and its answer."""

    def __init__(self) -> None:
        self.engine: Engine | None = None

    async def ask(self, question: Question, budget: CallBudget) -> Verdict:
        """Answer with one call."""
        assert await budget.reserve()
        assert self.engine is not None
        await self.engine.flush()
        budget.spend(Usage(100, 10), question.model)
        return Verdict(outcome="answered", answer="{}", attempts=1, usage=Usage(100, 10))

    async def aclose(self) -> None:
        """Do nothing: no connection is open."""


def test_a_call_with_a_pending_answer_is_not_charged_as_interrupted(store: Store, copied: Path) -> None:
    """Reservations are settled only after the flush, or a kill would charge the call twice."""
    judge = LandingJudge()

    async def work() -> None:
        async with engine_over(store, judge=judge, limits=NEVER) as engine:
            judge.engine = engine
            await engine.ingest_exchange(build.exchange("s", 1))
            await engine.flush()
            await all_judged(engine)
            copy_of(store, copied)

    async def goes_on(later: Store) -> None:
        async with engine_over(later, judge=judge) as engine:
            judge.engine = engine
            await engine.wait_until_drained()

    run(work())
    with Store(copied) as later:
        assert rows(later, "SELECT 1 FROM log.reservations"), "a call was under way as far as the tables tell"
        run(goes_on(later))
        assert [outcome for (outcome,) in rows(later, "SELECT DISTINCT outcome FROM log.judgements")] == ["answered"]


def test_a_reader_sees_acknowledged_records(store: Store, tmp_path: Path) -> None:
    """An acknowledged exchange can be read at once, without waiting for the next flush."""

    async def work() -> int:
        async with engine_over(store, limits=NEVER) as engine:
            await engine.ingest_exchanges(turns("s"))
            with AccessStore(tmp_path / "fleet.access", TickingClock()) as access:
                context = ApiContext(engine, access, ApiSettings(), Metrics())
                return await context.ask(lambda cursor: len(cursor.execute("SELECT 1 FROM log.exchanges").fetchall()))

    assert run(work()) == TURNS


def test_a_flush_that_fails_after_its_commit_writes_nothing_twice(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call must be charged once, even if the flush fails between the commit and the deletion."""

    async def work() -> None:
        async with engine_over(store, judge=MoodyJudge(0, lambda _: "{}"), limits=NEVER) as engine:
            await judged_in_the_log(engine)
            await engine.ingest_exchanges(turns("t"))
            with monkeypatch.context() as patched:
                patched.setattr("streams.log.local_log.write_commits", fails)
                with pytest.raises(duckdb.IOException):
                    await engine.flush()
            await engine.wait_until_drained()

    def fails(*given: Any) -> None:
        write_commits(*given)
        raise duckdb.IOException("the commit was durable")

    run(work())
    assert store.count("exchanges") == 2 * TURNS
    assert_nothing_is_there_twice(store)


def test_two_concurrent_stops_flush_once(store: Store) -> None:
    """Pressing Ctrl-C twice must not flush twice."""

    async def work() -> None:
        engine = Engine(store, Policy(), Redactor(Policy().redaction), TickingClock(), judge=MoodyJudge(0, lambda _: "{}"))
        await engine.start()
        await judged_in_the_log(engine)
        await engine.ingest_exchanges(turns("t"))
        await asyncio.gather(engine.stop(), engine.stop(0))

    run(work())
    assert store.count("exchanges") == 2 * TURNS
    assert_nothing_is_there_twice(store)


def test_erasing_an_exchange_keeps_judgements_of_other_sessions(store: Store) -> None:
    """A commit covers many sessions: erasing one must not drop records of the others."""
    log = local_log(store)
    log.recover()
    records = {"exchanges": [encode(build.exchange("gone", 1))], "judgements": [encode(build.judgement("stays", 1))]}
    run(log.append(Commit(records, {"exchanges": 0, "judgements": 0}), {}))
    killed(log)
    with store.transaction() as transaction:
        transaction.append("erasures", [encode(erasure_of("gone"))])
    recover_closed(store)
    assert rows(store, "SELECT session_id FROM log.judgements") == [("stays",)]
    assert store.count("exchanges") == 0
    assert store.end_of("exchanges") == 1, "its offset is given to nobody else"


def test_the_log_of_a_killed_server_0_2_0_is_taken_over(tmp_path: Path) -> None:
    """Entries of version 0.2.0 have another format: an upgrade after a crash must neither lose, duplicate nor re-decide records."""
    with tarfile.open(KILLED) as packed:
        # The filter came with Python 3.11.4.
        packed.extraction_filter = getattr(tarfile, "data_filter", lambda member, _: member)
        packed.extractall(tmp_path)  # noqa: S202 - an archive of ours
    path = tmp_path / "store.duckdb"

    async def work(store: Store) -> None:
        async with engine_over(store) as engine:
            assert [answer.outcome for answer in await engine.ingest_exchanges(turns("s"))] == ["known"] * TURNS  # type: ignore[union-attr]
            assert (await engine.ingest_exchange(build.exchange("t", 2))).outcome == "written"
            await engine.wait_until_drained()

    with Store(path) as store:
        assert [store.count(table) for table in ("exchanges", "agent_events", "heartbeats")] == [3, 1, 0]
        run(work(store))
        assert [store.count(table) for table in ("exchanges", "agent_events", "heartbeats")] == [TURNS + 2, 3, 1]
        assert_nothing_is_there_twice(store)
        offsets = rows(store, "SELECT _offset FROM log.exchanges ORDER BY 1")
        assert offsets == [(offset,) for offset in range(TURNS + 2)]
        scored = rows(store, "SELECT exchange_id FROM scores ORDER BY ALL")
        runner_of(store).rebuild()
        assert scored == rows(store, "SELECT exchange_id FROM scores ORDER BY ALL")
        assert len(scored) == TURNS + 2
    assert not log_folder(path).exists()
