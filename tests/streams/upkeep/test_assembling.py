"""Traces become exchanges and events over a real engine: once complete, exactly once, despite late spans and kills."""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import shutil
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pytest
from support.builders import event
from support.clocks import NOW
from support.engines import engine_over, rows, runner_over
from support.otlp_captures import LABELS, OWNER, REDACTOR, Json
from support.otlp_spans import START, TRACE, agent, attributes, chat, request, span, span_id, tool

from analytics.identity.duplicate_matching import KnownIdentities
from analytics.queries import query_rows
from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from audit.policy import Policy
from schemas.codec.arrow import decode_batch
from schemas.codec.single_object import encode
from schemas.lazy import pl
from schemas.records import Record, Span
from streams.engine.engine import Engine
from streams.log.local_log import LocalLog
from streams.log.log import Commit, Submission
from streams.sources.otlp.received import RejectedItem
from streams.sources.otlp.request import SIGNALS
from streams.sources.otlp.stored_spans import build_span_record
from streams.upkeep import assembling
from streams.upkeep.assembling import LATE, MAX_PAUSE_SECONDS, TOO_MANY, TraceAssembler
from streams.upkeep.deletion import KEPT_SPANS, erase, erasure, purge, request_erasure

T = TypeVar("T")
RULES = Policy().defaults.traces
SETTLE, IDLE = timedelta(seconds=RULES.settle_seconds), timedelta(seconds=RULES.idle_seconds)


class Fleet:
    """An engine, its assembler and a clock that the test moves."""

    def __init__(self, store: Store, runner: asyncio.Runner, stack: contextlib.AsyncExitStack) -> None:
        self.store = store
        self.now = NOW
        self._runner = runner
        self.engine: Engine = self.run(stack.enter_async_context(engine_over(store, now=lambda: self.now)))
        self.assembler = TraceAssembler(self.engine)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of a coroutine."""
        return self._runner.run(work)

    def send(self, *spans: Json) -> None:
        """Ingest spans."""
        self.run(self.engine.publish("spans", self.records(*spans)))

    def records(self, *spans: Json) -> list[Span]:
        """Return the records of spans that arrive now."""
        return span_records(spans, self.now)

    def pass_by(self, time: timedelta) -> None:
        """Advance the clock and run the assembler twice."""
        self.look()
        self.now += time
        self.look()

    def look(self) -> None:
        """Run the assembler."""
        self.run(self.engine.flush())
        self.run(self.assembler.run())
        self.run(self.engine.wait_until_drained())

    def current(self, table: str, columns: str) -> list[tuple[object, ...]]:
        """Return rows as readers see them: the latest revision of each identity."""
        return self.store.cursor().execute(f"SELECT {columns} FROM {table} ORDER BY ALL").fetchall()

    def counted(self) -> list[tuple[str, object]]:
        """Return the number of exchanges in the daily sums."""
        refresh_daily(self.store)
        cursor = self.store.cursor()
        found = cursor.execute(
            "SELECT (SELECT sum(exchanges) FROM log.daily_exchanges), (SELECT sum(exchanges) FROM log.daily_scores), "
            "(SELECT sum(exchanges) FROM log.session_scores)"
        ).fetchone()
        assert found is not None
        assert len(set(found)) == 1
        return [("exchanges", found[0])]

    def rows(self, table: str, columns: str) -> list[tuple[object, ...]]:
        """Return rows of a table."""
        return rows(self.store, table, columns)


def span_records(spans: Sequence[Json], now: datetime) -> list[Span]:
    """Return the records of spans that arrive at a time."""
    observed = SIGNALS["traces"].read(request(*spans).as_json, now, is_json=True)
    return [build_span_record(each, OWNER, REDACTOR, now, LABELS) for each in observed if not isinstance(each, RejectedItem)]


@pytest.fixture
def fleet(store: Store) -> Iterator[Fleet]:
    """Return a fleet that sends traces."""
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()
        yield Fleet(store, runner, stack)
        runner.run(stack.aclose())


def decisions(fleet: Fleet) -> list[tuple[object, ...]]:
    """Return the decisions on traces."""
    return fleet.rows("trace_assemblies", "revision, reason, spans, exchanges, revised_exchanges, state")


def test_a_trace_is_assembled_after_its_root(fleet: Fleet) -> None:
    """Spans of a trace arrive in several requests, the root last; it is complete shortly afterwards."""
    fleet.send(tool(1), chat(2))
    fleet.send(agent(0))
    fleet.pass_by(SETTLE - timedelta(seconds=1))
    assert decisions(fleet) == []
    fleet.pass_by(timedelta(seconds=1))
    assert decisions(fleet) == [(0, "settled", 3, 1, 0, "complete")]
    assert fleet.rows("exchanges", "user_message, agent_response, agent, session_id") == [
        ("Is it well?", "It is.", "scout", "s1")
    ]
    assert sorted(fleet.rows("agent_events", "event, seq"), key=lambda row: row[1]) == [
        ("tool_call", 0),
        ("tool_output", 1),
        ("token_usage", 2),
    ]  # type: ignore[arg-type, return-value]


def test_each_new_span_restarts_the_wait(fleet: Fleet) -> None:
    """Spans that arrive in time belong to the first revision."""
    fleet.send(agent(0))
    fleet.pass_by(SETTLE - timedelta(seconds=1))
    fleet.send(tool(1))
    fleet.pass_by(SETTLE - timedelta(seconds=1))
    assert decisions(fleet) == []
    fleet.pass_by(timedelta(seconds=1))
    assert decisions(fleet) == [(0, "settled", 2, 1, 0, "complete")]


def land_at(fleet: Fleet, partition: int, offset: int, *spans: Json) -> None:
    """Write spans at offsets of several partitions."""
    frame = decode_batch(list(map(encode, fleet.records(*spans)))).frames["Span"]
    offsets = (pl.int_range(pl.len(), dtype=pl.Int64) + offset).alias("_offset")
    placed = frame.with_columns(pl.lit(partition, pl.Int32).alias("_partition"), offsets)
    with fleet.store.transaction() as transaction:
        transaction.flush("spans", {"Span": placed}, KnownIdentities())


def test_a_later_span_may_have_a_smaller_offset_on_its_partition(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A span without a session is on another partition than its trace, and offsets of two partitions cannot be compared."""
    ends: dict[int, int] = {}
    monkeypatch.setattr(fleet.engine, "ends_in_tables", lambda _: ends)
    land_at(fleet, 1, 900, tool(1))
    ends[1] = 901
    fleet.look()
    land_at(fleet, 0, 10, chat(2), agent(0))
    ends[0] = 12
    fleet.pass_by(SETTLE)
    assert decisions(fleet) == [(0, "settled", 3, 1, 0, "complete")]


def test_a_trace_without_a_root_is_assembled_when_idle(fleet: Fleet) -> None:
    """A killed process never sends the root."""
    fleet.send(chat(1, 0), tool(2, 0))
    fleet.pass_by(IDLE - timedelta(seconds=1))
    assert decisions(fleet) == []
    fleet.pass_by(timedelta(seconds=1))
    assert decisions(fleet) == [(0, "idle", 2, 1, 0, "complete")]


def test_a_late_span_revises_the_exchange(fleet: Fleet) -> None:
    """Its events are appended, and its tokens are added to the turn's."""
    fleet.send(agent(0), tool(1))
    fleet.pass_by(SETTLE)
    fleet.send(chat(2), tool(3))
    fleet.pass_by(SETTLE)
    fleet.pass_by(IDLE)
    assert decisions(fleet) == [(0, "settled", 2, 1, 0, "complete"), (1, "idle", 4, 0, 1, "complete")]
    assert fleet.current("exchanges", "input_tokens, revision") == [(12, 1)]
    assert fleet.current("scores", "turn_number, revision") == [(1, 1)]
    positions = fleet.rows("agent_events", "seq")
    assert positions == [(number,) for number in range(5)]


def late_root() -> tuple[list[Json], list[Json]]:
    """Return a turn with an approval: the spans that end before the approval, and those that end after it."""
    call = {"type": "tool_call", "id": "call-3", "name": "exec", "arguments": {"n": 3}}
    parts = [{"role": "assistant", "parts": [{"type": "text", "content": "answer 2"}, call]}]
    first = [chat(2, 1, attributes={"gen_ai.usage.input_tokens": 30, "gen_ai.output.messages": json.dumps(parts)})]
    return first, [tool(3, 1), chat(4, 1), agent(1, question="Refund it", answer="Refunded.")]


def test_a_root_that_ends_late_revises_the_turn(fleet: Fleet) -> None:
    """An approval may take longer than the idle time: the turn stays one exchange, whose tokens and call count once."""
    first, late_spans = late_root()
    fleet.send(*first)
    fleet.pass_by(IDLE)
    assert fleet.current("exchanges", "user_message, agent_response, input_tokens") == [("question 2", "answer 2", 30)]
    fleet.send(*late_spans)
    fleet.pass_by(SETTLE)
    assert decisions(fleet) == [(0, "idle", 1, 1, 0, "complete"), (1, "settled", 4, 0, 1, "complete")]
    columns = "exchange_id, user_message, agent_response, input_tokens, output_tokens, revision"
    assert fleet.current("exchanges", columns) == [(f"{TRACE}:{span_id(2)}", "Refund it", "Refunded.", 44, 2, 1)]
    assert fleet.current("scores", "turn_number, revision, sampling_reason") == [(1, 1, "first_turns")]
    events = [event for (event,) in fleet.rows("agent_events", "event")]
    assert {event: events.count(event) for event in events} == {"token_usage": 2, "tool_call": 1, "tool_output": 1}


def test_turns_that_turn_out_to_be_one_are_merged(fleet: Fleet) -> None:
    """Two agents of a workflow, separated by approvals, look like two turns until the workflow ends."""
    fleet.send(agent(1, 0, question="Refund it", answer="Let me ask."), chat(2, 1))
    fleet.pass_by(IDLE)
    fleet.send(agent(3, 0, question="Go on", answer="Done."), chat(4, 3))
    fleet.pass_by(IDLE)
    assert fleet.current("scores", "turn_number") == [(1,), (2,)]
    fleet.send(agent(0, question="Refund it", answer="Refunded."))
    fleet.pass_by(SETTLE)
    columns = "exchange_id, user_message, agent_response, input_tokens"
    assert fleet.current("exchanges", columns) == [(f"{TRACE}:{span_id(1)}", "Refund it", "Refunded.", 26)]
    assert fleet.current("scores", "turn_number, revision") == [(1, 1)]
    assert fleet.rows("trace_assemblies", "revised_exchanges, withdrawn_exchanges") == [(0, 0), (0, 0), (1, 1)]
    assert fleet.counted() == [("exchanges", 1)]


def test_a_rebuild_keeps_the_revisions_of_a_turn(fleet: Fleet) -> None:
    """The decisions on its revisions are in the log, so a rebuild gives the same scores."""
    first, late_spans = late_root()
    fleet.send(*first)
    fleet.pass_by(IDLE)
    fleet.send(*late_spans)
    fleet.pass_by(SETTLE)
    before = fleet.rows("scores", "* EXCLUDE (_offset)")
    assert len(before) == 2
    runner_over(fleet.store).rebuild()
    assert fleet.rows("scores", "* EXCLUDE (_offset)") == before


class Killed(BaseException):
    """Raised where the process is killed."""


def as_on_kafka(engine: Engine, *, killed_at: str = "") -> Callable[[Submission], Coroutine[Any, Any, None]]:
    """Commit a stage's records topic by topic, then states and positions; may be killed before any of these."""

    async def commit(submission: Submission) -> None:
        for topic, records in submission.records.items():
            if topic == killed_at:
                raise Killed
            await engine.publish(topic, records)
        if killed_at == "states" and submission.records:
            raise Killed
        await engine._submit(replace(submission, records={}, messages={}))

    return commit


@pytest.mark.parametrize("killed_at", ["agent-events", "trace-assemblies", "states"])
def test_a_kill_between_the_first_exchange_and_its_decision_makes_no_second_turn(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    """On Kafka the root may come while the process is down: the next one meets the trace whole, with an exchange that no decision tells of."""
    first, late_spans = late_root()
    fleet.send(*first)
    with monkeypatch.context() as patched:
        patched.setattr(fleet.engine, "commit", as_on_kafka(fleet.engine, killed_at=killed_at))
        with pytest.raises(Killed):
            fleet.pass_by(IDLE)
    fleet.send(*late_spans)
    monkeypatch.setattr(fleet.engine, "commit", as_on_kafka(fleet.engine))
    fleet.assembler = TraceAssembler(fleet.engine)
    fleet.pass_by(SETTLE)
    assert fleet.current("exchanges", "user_message, input_tokens, revision") == [("Refund it", 44, 1)]


def rating(name: str, score: float, **told: object) -> Json:
    """Return the event of an external evaluation."""
    given = {"gen_ai.evaluation.name": name, "gen_ai.evaluation.score.value": score, **told}
    return {"timeUnixNano": str(START), "name": "gen_ai.evaluation.result", "attributes": attributes(given)}


def test_an_evaluation_is_a_score_by_a_rater_of_its_name(fleet: Fleet) -> None:
    """Agreement with the judge is computed of it. It is of the exchange with the response that it names, else of that of its span."""
    spoken = {"gen_ai.evaluation.score.label": "good", "gen_ai.evaluation.explanation": "It answers."}
    fleet.send(
        agent(0, events=[rating("relevance", 0.75, **spoken)]),
        chat(1),
        agent(2),
        chat(3, 2),
        span(4, events=[rating("faithfulness", 0.0, **{"gen_ai.response.id": "answer-3"}), rating("of nothing", 1.0)]),
    )
    fleet.pass_by(SETTLE)
    scores = (
        "SELECT reviewer, score, comment, exchange_id FROM log.reviews JOIN log.scores ON subject_id = score_id ORDER BY ALL"
    )
    score_rows = fleet.store.cursor().execute(scores).fetchall()

    first, second = (f"{TRACE}:{span_id(number)}" for number in (0, 2))
    assert score_rows == [("faithfulness", 1, None, second), ("relevance", 4, "good: It answers.", first)]


def test_an_evaluation_outside_the_scale_is_ignored(fleet: Fleet) -> None:
    """7.5 of 10 read as a share would be a wrong score; the policy sets the scale."""
    fleet.send(agent(0, events=[rating("relevance", 7.5), rating("relevance", -0.1), rating("relevance", 1.0)]))
    fleet.pass_by(SETTLE)

    assert fleet.rows("reviews", "reviewer, score") == [("relevance", 5)]


def test_an_evaluation_counts_once_however_often_its_trace_is_assembled(fleet: Fleet) -> None:
    """A late span causes the trace to be assembled again."""
    fleet.send(agent(0, events=[rating("relevance", 0.5)]))
    fleet.pass_by(SETTLE)
    fleet.send(tool(1))
    fleet.pass_by(IDLE)

    assert [revision for revision, *_ in decisions(fleet)] == [0, 1]
    assert fleet.rows("reviews", "reviewer, score") == [("relevance", 3)]


def test_a_completed_trace_gives_no_more_records(fleet: Fleet) -> None:
    """The assembler checks every second."""
    fleet.send(agent(0), tool(1))
    for _ in range(5):
        fleet.pass_by(SETTLE)
    fleet.send(agent(0), tool(1))
    fleet.pass_by(IDLE)
    assert len(decisions(fleet)) == 1
    assert len(fleet.rows("agent_events", "seq")) == 2


def test_a_kill_before_the_decision_changes_nothing(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """On Kafka, exchanges and events may exist without the decision: the next process creates the same ones again."""
    fleet.send(agent(0), tool(1), chat(2))
    with monkeypatch.context() as patched:
        patched.setattr(fleet.engine, "commit", as_on_kafka(fleet.engine, killed_at="trace-assemblies"))
        with pytest.raises(Killed):
            fleet.pass_by(SETTLE)
    fleet.run(fleet.engine.flush())
    before = fleet.rows("exchanges", "*"), fleet.rows("agent_events", "*")
    assert all(before)
    fleet.assembler = TraceAssembler(fleet.engine)
    fleet.pass_by(SETTLE)
    assert (fleet.rows("exchanges", "*"), fleet.rows("agent_events", "*")) == before
    assert [(*row[:3], 0, *row[4:]) for row in decisions(fleet)] == [(0, "settled", 3, 0, 0, "complete")]


def test_a_backlog_is_processed_without_pauses(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """With many waiting spans, a pause after each round would leave a core idle."""
    monkeypatch.setattr(assembling, "TRACES_AT_ONCE", 1)
    fleet.send(agent(0), tool(1), agent(0, trace="1" * 32))
    fleet.now += SETTLE
    fleet.look()
    assert sorted(spans for _, _, spans, *_ in decisions(fleet)) == [1, 2]  # type: ignore[type-var]


def test_the_stage_waits_for_spans_and_for_the_next_complete_trace(fleet: Fleet) -> None:
    """The stage does not poll: it is poked for new spans, and has a timer for waiting traces."""
    pokes: list[str] = []
    fleet.engine.has_more = lambda: pokes.append("poked")
    fleet.look()
    assert fleet.assembler.interval == MAX_PAUSE_SECONDS
    pokes.clear()
    fleet.send(agent(0))
    fleet.look()
    assert pokes
    assert SETTLE.total_seconds() == fleet.assembler.interval
    fleet.now += timedelta(seconds=1.5)
    fleet.look()
    assert SETTLE.total_seconds() - 1.5 == fleet.assembler.interval


def test_a_restart_finds_the_open_traces(fleet: Fleet) -> None:
    """A restart creates no second revision of completed traces."""
    fleet.send(agent(0), tool(1))
    fleet.pass_by(SETTLE)
    fleet.send(agent(0, trace="1" * 32))
    fleet.assembler = TraceAssembler(fleet.engine)
    fleet.pass_by(SETTLE)
    assert len(decisions(fleet)) == 2
    assert {row[0] for row in decisions(fleet)} == {0}


def open_traces(fleet: Fleet) -> list[tuple[object, ...]]:
    """Return the traces with a state."""
    return fleet.rows("stage_state WHERE stage = 'traces'", "key")


def test_a_state_exists_while_its_trace_is_open(fleet: Fleet) -> None:
    """States of completed traces must not fill the file."""
    fleet.send(agent(0), tool(1))
    fleet.look()
    fleet.run(fleet.engine.flush())
    assert open_traces(fleet) == [(f"north/{TRACE}",)]
    fleet.pass_by(SETTLE)
    assert open_traces(fleet) == []


def test_a_restart_reads_no_span_again(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """Open traces are in the states; reading a day of spans again would take minutes."""
    queries: list[str] = []
    monkeypatch.setattr(
        assembling, "query_rows", lambda cursor, name, *values: queries.append(name) or query_rows(cursor, name, *values)
    )
    fleet.look()
    fleet.send(agent(0), tool(1))
    fleet.look()
    assert queries == ["undecided_traces", "arrived_spans"]
    fleet.assembler = TraceAssembler(fleet.engine)
    fleet.look()
    assert queries == ["undecided_traces", "arrived_spans"]
    fleet.pass_by(SETTLE)
    assert decisions(fleet) == [(0, "settled", 2, 1, 0, "complete")]


def test_a_database_without_trace_states_is_upgraded(fleet: Fleet) -> None:
    """Completed traces stay unchanged; open ones and those with new spans are assembled."""
    late = agent(0, trace="2" * 32)
    fleet.send(agent(0), tool(1), late)
    fleet.pass_by(SETTLE)
    fleet.send(tool(2, trace="2" * 32), agent(0, trace="3" * 32))
    fleet.run(fleet.engine.flush())
    with fleet.store.transaction() as transaction:
        transaction.connection.execute("DELETE FROM log.stage_state WHERE stage = 'traces'")
        transaction.connection.execute("DELETE FROM log.watermarks WHERE consumer = 'traces'")
    fleet.assembler = TraceAssembler(fleet.engine)
    fleet.pass_by(SETTLE)
    fleet.pass_by(IDLE)
    by_trace = fleet.rows("trace_assemblies", "trace_id[:1], revision, spans, exchanges, revised_exchanges")
    assert by_trace == [("0", 0, 2, 1, 0), ("2", 0, 1, 1, 0), ("2", 1, 2, 0, 0), ("3", 0, 1, 1, 0)]
    assert len(fleet.current("exchanges", "exchange_id")) == 3


def test_a_rebuild_keeps_the_decisions_on_traces(fleet: Fleet) -> None:
    """Decisions are records; open traces stay open."""
    fleet.send(agent(0), tool(1))
    fleet.pass_by(SETTLE)
    fleet.send(agent(0, trace="1" * 32))
    fleet.look()
    fleet.run(fleet.engine.flush())
    before = fleet.rows("trace_assemblies", "*"), fleet.rows("exchanges", "*"), open_traces(fleet)
    runner_over(fleet.store).rebuild()
    fleet.assembler = TraceAssembler(fleet.engine)
    fleet.look()
    assert (fleet.rows("trace_assemblies", "*"), fleet.rows("exchanges", "*"), open_traces(fleet)) == before
    fleet.pass_by(SETTLE)
    assert fleet.rows("trace_assemblies", "revision") == [(0,), (0,)]


@pytest.mark.parametrize("session", ["s1", None])
def test_an_open_trace_of_an_erased_session_gives_no_records(fleet: Fleet, session: str | None) -> None:
    """Its state is removed, too; other open traces are assembled."""
    other = agent(0, trace="1" * 32, attributes={"gen_ai.conversation.id": "other"})
    fleet.send(agent(0), tool(1), *([other] if session else []))
    fleet.look()
    fleet.run(request_erasure(fleet.engine, erasure("north", session, "root", None, fleet.now)))
    fleet.pass_by(SETTLE)
    expected = [("other",)] if session else []
    assert fleet.rows("exchanges", "session_id") == expected
    assert fleet.rows("trace_assemblies", "session_id") == expected
    assert open_traces(fleet) == []


def test_spans_of_a_deleted_trace_are_reported(fleet: Fleet, caplog: pytest.LogCaptureFixture) -> None:
    """Spans from an exporter that was offline for two days cannot be assembled, and the reason must be visible."""
    counted: list[int] = []
    fleet.assembler = TraceAssembler(fleet.engine, counted.append)
    fleet.send(agent(0), tool(1), tool(2))
    fleet.pass_by(SETTLE)
    fleet.now += KEPT_SPANS + timedelta(days=1)
    purge(fleet.store, fleet.engine.policy, fleet.now)
    fleet.send(tool(3))
    fleet.pass_by(IDLE)
    assert len(decisions(fleet)) == 1
    assert fleet.rows("dead_letters", "reason") == [(LATE,)]
    assert counted == [1]
    assert f"1 spans of trace {TRACE} " in caplog.text
    fleet.assembler = TraceAssembler(fleet.engine, counted.append)
    fleet.pass_by(IDLE)
    assert fleet.rows("dead_letters", "reason") == [(LATE,)], "a start reads them again, and tells of them once"
    assert counted == [1]


def test_a_trace_with_too_many_spans_is_a_dead_letter(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other trace of the round is assembled, and the large one becomes a single dead letter."""
    monkeypatch.setattr(assembling, "MAX_SPANS", 3)
    fleet.send(agent(0), tool(1), tool(2), tool(3), agent(0, trace="1" * 32))
    for _ in range(3):
        fleet.pass_by(SETTLE)
    assert decisions(fleet) == [(0, "settled", 1, 1, 0, "complete")]
    assert fleet.rows("dead_letters", "reason") == [(TOO_MANY,)]


def test_a_trace_that_cannot_be_assembled_is_a_dead_letter(fleet: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug in one trace must not affect others."""
    assemble = assembling.assemble

    def faulty(records: list[Span], decision: Any) -> Any:
        if records[0].trace_id == "1" * 32:
            raise RuntimeError("a fault")
        return assemble(records, decision)

    monkeypatch.setattr(assembling, "assemble", faulty)
    fleet.send(agent(0), agent(0, trace="1" * 32))
    fleet.pass_by(SETTLE)
    assert len(decisions(fleet)) == 1
    assert len(fleet.rows("dead_letters", "reason")) == 1


def test_positions_are_unique_if_events_arrive_both_ways(fleet: Fleet) -> None:
    """A plugin may send events of a session while its traces arrive."""
    own = [msgspec.structs.replace(event("s1", number, event_id=f"own-{number}"), connection="north") for number in range(3)]
    fleet.run(fleet.engine.publish("agent-events", own))
    fleet.send(agent(0), tool(1), tool(2))
    fleet.pass_by(SETTLE)
    positions = fleet.rows("agent_events", "seq")
    assert positions == [(number,) for number in range(7)]


def test_an_erased_session_leaves_no_span(fleet: Fleet) -> None:
    """Spans without a session belong to the session of their trace; spans of other sessions and traces are kept."""
    fleet.send(agent(0), tool(1), span(2, 0), agent(0, trace="1" * 32, attributes={"gen_ai.conversation.id": "other"}))
    fleet.pass_by(SETTLE)
    fleet.run(request_erasure(fleet.engine, erasure("north", "s1", "root", None, fleet.now)))
    fleet.run(fleet.engine.flush())
    erase(fleet.store, fleet.now)
    assert fleet.rows("spans", "session_id") == [("other",)]
    assert fleet.rows("trace_assemblies", "session_id") == [("other",)]
    assert fleet.rows("exchanges", "session_id") == [("other",)]


def test_spans_are_kept_for_a_day(fleet: Fleet) -> None:
    """Records assembled from them are kept, and so are spans that arrived later."""
    fleet.send(agent(0), tool(1))
    fleet.pass_by(SETTLE)
    fleet.now += KEPT_SPANS
    fleet.send(agent(0, trace="1" * 32))
    fleet.run(fleet.engine.flush())
    purge(fleet.store, fleet.engine.policy, fleet.now)
    assert fleet.rows("spans", "trace_id") == [("1" * 32,)]
    assert [len(fleet.rows(table, "*")) for table in ("exchanges", "agent_events")] == [1, 2]
    fleet.pass_by(SETTLE)
    assert [row[0] for row in decisions(fleet)] == [0, 0]


def test_ten_thousand_concurrent_traces_take_bounded_memory(fleet: Fleet) -> None:
    """A Collector that was cut off sends what it kept: traces are assembled some hundred at a time."""
    count = 10_000
    for start in range(0, count, 1_000):
        fleet.send(*(agent(0, trace=f"{number + 1:032x}") for number in range(start, start + 1_000)))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    fleet.pass_by(SETTLE)
    added_memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert count == len(decisions(fleet))
    assert count == len(fleet.rows("exchanges", "exchange_id"))
    assert added_memory < 400_000, "kilobytes"


def step(number: int, trace: str, sent: Sequence[Json], came: Json, **told: object) -> Json:
    """Return a request of a turn, in its own trace."""
    texts = {"gen_ai.input.messages": json.dumps(sent), "gen_ai.output.messages": json.dumps([came])}
    span = chat(number, None, trace=trace, attributes={"session.id": "s1", **texts, **told})
    return {**span, "endTimeUnixNano": str(int(span["startTimeUnixNano"]) + 500_000_000)}


ASKED = {"role": "user", "parts": [{"type": "text", "content": "Which gate?"}]}
CALL = {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "find", "arguments": {}}]}
OUTPUT = {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "4"}]}
ANSWER = {"role": "assistant", "parts": [{"type": "text", "content": "Gate 4"}]}
TOOL = {"gen_ai.tool.call.id": "c1", "gen_ai.tool.name": "find", "session.id": "s1"}


def parts_of_a_turn(first: int = 1, mark: str = "a") -> list[Json]:
    """Return a turn whose requests and call are in separate traces."""
    return [
        step(first, mark * 32, [ASKED], CALL),
        tool(first + 1, None, trace=mark * 31 + "7", attributes=TOOL),
        step(first + 2, mark * 31 + "8", [ASKED, CALL, OUTPUT], ANSWER),
    ]


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 0, 2), (0, 2, 1)])
@pytest.mark.parametrize("wait", [SETTLE, timedelta(0)])
def test_a_turn_with_a_trace_per_request_is_one_exchange(fleet: Fleet, order: tuple[int, ...], wait: timedelta) -> None:
    """This holds whether the parts arrive together or after earlier parts were assembled, and in any order."""
    parts = parts_of_a_turn()
    for index in order:
        fleet.send(parts[index])
        fleet.pass_by(wait)
    fleet.pass_by(SETTLE)
    current = "SELECT user_message, agent_response, input_tokens, session_id FROM log.current_exchanges"
    assert fleet.store.cursor().execute(current).fetchall() == [("Which gate?", "Gate 4", 24, "s1")]
    calls = "SELECT event, json_extract_string(payload, '$.tool_call_id') FROM log.agent_events WHERE event LIKE 'tool%' ORDER BY ALL"
    assert fleet.store.cursor().execute(calls).fetchall() == [("tool_call", "c1"), ("tool_output", "c1")]
    assert len(fleet.rows("agent_events WHERE event = 'token_usage'", "event")) == 2


def test_a_later_turn_with_the_same_question_and_ids_is_another_exchange(fleet: Fleet) -> None:
    """Users repeat questions, and some servers number the calls of each answer from 1."""
    for part in (*parts_of_a_turn(), *parts_of_a_turn(10, "b")):
        fleet.send(part)
        fleet.pass_by(SETTLE)
    current = "SELECT agent_response, input_tokens FROM log.current_exchanges ORDER BY occurred_at"
    assert fleet.store.cursor().execute(current).fetchall() == [("Gate 4", 24), ("Gate 4", 42)]
    assert len(fleet.rows("agent_events WHERE event = 'tool_call'", "event")) == 2
    assert len(fleet.rows("agent_events WHERE event = 'tool_output'", "event")) == 2


def test_the_same_question_in_another_session_is_not_linked(fleet: Fleet) -> None:
    """Ids of calls are unique only within a sender."""
    first, _, last = parts_of_a_turn()
    fleet.send(first, step(3, "d" * 32, [ASKED, CALL, OUTPUT], ANSWER, **{"session.id": "s2"}), last)
    fleet.pass_by(SETTLE)
    assert fleet.rows("exchanges", "session_id") == [("s1",), ("s2",)]


@pytest.mark.parametrize("wait", [SETTLE, timedelta(0)])
def test_two_instrumentors_of_a_process_report_one_exchange(fleet: Fleet, wait: timedelta) -> None:
    """Each starts its own trace, one without the session: exchange, tokens and call must count once, in the session."""
    shared = {"gen_ai.response.id": "r1", "gen_ai.tool.call.id": None, "gen_ai.conversation.id": None}
    for trace, session in (("b" * 32, {}), ("a" * 32, {"session.id": "s1"})):
        around = agent(0, trace=trace, attributes={**shared, **session}, endTimeUnixNano=str(START + 60_000_000_000))
        call = tool(1, trace=trace, attributes={**shared, "gen_ai.tool.call.arguments": "{}"})
        fleet.send(around, call, chat(2, trace=trace, attributes=shared))
        fleet.pass_by(wait)
    fleet.pass_by(SETTLE)
    current = "SELECT session_id, user_message, input_tokens FROM log.current_exchanges"
    assert fleet.store.cursor().execute(current).fetchall() == [("s1", "Is it well?", 12)]
    assert Counter(row[0] for row in fleet.rows("agent_events", "event")) == {
        "token_usage": 1,
        "tool_call": 1,
        "tool_output": 1,
    }


def steps() -> list[tuple[timedelta, list[Json]]]:
    """Spans that come at a time: traces that settle, are late, tell of a new version, have a rating, and are parts of one turn."""
    first, late_spans = late_root()
    of_versions = [
        agent(0, trace=mark * 32, attributes={"gen_ai.agent.version": version}) for mark, version in (("1", "1"), ("2", "2"))
    ]
    return [
        (timedelta(0), [*of_versions, tool(8, trace="1" * 32), *first]),
        (SETTLE, []),
        (IDLE, []),
        (IDLE, [*late_spans, tool(9, trace="1" * 32), agent(0, trace="3" * 32, events=[rating("relevance", 0.5)])]),
        (IDLE, parts_of_a_turn()),
        (IDLE + SETTLE, []),
        (2 * IDLE, []),
    ]


class Life:
    """Processes over one file, each killed at its append."""

    def __init__(self, kills: Sequence[int], *, is_written: bool) -> None:
        self.appends = 0
        self.now = NOW
        self._kills = kills
        self._is_written = is_written

    async def append(self, log: LocalLog, commit: Commit, records: Mapping[str, Sequence[Record]]) -> None:
        """Append, unless the process is killed before or right after it."""
        self.appends += 1
        is_killed = self.appends in self._kills
        if self._is_written or not is_killed:
            await APPEND(log, commit, records)
        if is_killed:
            raise Killed

    async def live(self, store: Store, left: list[tuple[timedelta, list[Json]]]) -> None:
        """Run the remaining steps; a step interrupted by a kill is sent again."""
        engine = Engine(store, Policy(), REDACTOR, lambda: self.now)
        await engine.start()
        assembler = TraceAssembler(engine)
        while left:
            work = asyncio.create_task(self._step(engine, assembler, *left[0]))
            end = asyncio.create_task(engine.broken.wait())
            await asyncio.wait([work, end], return_when=asyncio.FIRST_COMPLETED)
            if engine.broken.is_set():
                for task in asyncio.all_tasks() - {asyncio.current_task()}:
                    task.cancel()
                engine._log.close()
                return
            await work
            end.cancel()
            left.pop(0)
        self._kills = ()
        await engine.stop()

    async def _step(self, engine: Engine, assembler: TraceAssembler, at: timedelta, sent: Sequence[Json]) -> None:
        self.now = NOW + at
        await engine.publish("spans", span_records(sent, self.now))
        await engine.flush()
        await assembler.run()
        await engine.wait_until_drained()


APPEND = LocalLog.append
MADE = ("deployments", "exchanges", "agent_events", "reviews", "trace_assemblies", "judging_requests", "scores", "dead_letters")


def test_a_kill_between_any_two_appends_gives_the_same_records(
    empty_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records, states and positions are one entry of the log, written completely or not at all."""

    def lived(life: Life) -> dict[str, list[tuple[object, ...]]]:
        file, remaining = Path(shutil.copy(empty_file, tmp_path / "fleet.duckdb")), steps()
        monkeypatch.setattr(LocalLog, "append", lambda log, commit, records: life.append(log, commit, records))  # noqa: PLW0108 - a method would not be bound to the log
        while remaining:
            with Store(file) as store:
                asyncio.run(life.live(store, remaining))
        with Store(file) as store:
            return {table: rows(store, table, "* EXCLUDE (_offset)") for table in MADE}

    undisturbed = Life([], is_written=True)
    expected = lived(undisturbed)
    assert all(expected[table] for table in MADE if table != "dead_letters")
    for number in range(1, undisturbed.appends + 1):
        assert lived(Life([number], is_written=True)) == expected, number
    assert lived(Life(range(1, 200, 3), is_written=True)) == expected
    assert lived(Life(range(1, 200, 2), is_written=False)) == expected
