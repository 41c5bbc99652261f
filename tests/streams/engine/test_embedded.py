"""The embedded runner: the same records, whatever fails in between."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

import msgspec
import polars as pl
import pytest
from support import builders as build
from support import evaluation_builders as evaluations

from analytics.queries import query_rows
from analytics.store.store import Store
from analytics.store.tables import full_name
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.records import ImportProgress, Record
from schemas.registry import schema_of
from streams.engine.embedded import EmbeddedRunner
from streams.judging.judged_stages import read_no_judgements
from streams.log.admission import Admission, EncodedRecords
from streams.stage_batches import StageBatch, StepOutcome
from streams.stage_progress import StageProgress
from streams.topology import TOPOLOGY, derived_tables
from streams.upkeep.annotations import deployment

NOW = datetime(2026, 10, 2, tzinfo=UTC)


@pytest.fixture
def store() -> Iterator[Store]:
    """Return an empty store in memory."""
    with Store(None) as opened:
        yield opened


def runner_of(store: Store, batch_positions: int = 20_000) -> EmbeddedRunner:
    """Return a runner with the defaults."""
    return EmbeddedRunner(store, Policy(), Redactor(Policy().redaction), lambda: NOW, batch_positions=batch_positions)


def accepted_of(topic: str, records: Sequence[Record]) -> EncodedRecords:
    """Return admitted records."""
    accepted = EncodedRecords()
    Admission(Redactor(Policy().redaction), NOW).admit(accepted, topic, records, source="test")
    return accepted


def fill(runner: EmbeddedRunner, sessions: int = 3, turns: int = 10) -> None:
    """Publish sessions with exchanges and events, each closed on both topics."""
    names = [f"s{number}" for number in range(sessions)]
    exchanges = [build.exchange(name, turn) for turn in range(turns) for name in names]
    events = [build.event(name, turn, event="tool_call", tool="exec") for turn in range(turns) for name in names]
    closings = [build.closing(name, turns) for name in names]
    runner.publish(accepted_of("exchanges", [*exchanges, *closings]))
    runner.publish(accepted_of("agent-events", [*events, *closings]))


def table(store: Store, name: str) -> pl.DataFrame:
    """Return all rows of a record type's table in a fixed order, without their offsets."""
    frame = pl.DataFrame(store.cursor().sql(f"SELECT * EXCLUDE (_offset) FROM log.{name} ORDER BY ALL"))
    return frame.drop("_topic", "_partition")


def test_every_exchange_has_one_score_and_every_session_one_diagnosis(store: Store) -> None:
    """No record is dropped or counted twice."""
    runner = runner_of(store)
    fill(runner)
    runner.run()
    assert store.count("scores") == 30
    assert store.count("diagnoses") == 3


def test_running_again_reads_nothing(store: Store) -> None:
    """The watermarks show what has been read."""
    runner = runner_of(store)
    fill(runner)
    assert runner.run() > 0
    assert runner.run() == 0


def test_only_records_for_a_stage_leave_unfinished_work(store: Store) -> None:
    """Unfinished work is done without a judge: a recorded deployment must not cost the exchanges that wait for one their scores."""
    runner = runner_of(store)
    release = deployment(project="ops", version="2", by="ann", now=NOW, redactor=Redactor(Policy().redaction))
    runner.publish(accepted_of("deployments", [release]))
    assert not runner.finish()
    runner.publish(accepted_of("agent-events", [build.event("s1", 0, event="tool_call", tool="exec")]))
    assert runner.finish()


def test_a_redelivery_changes_nothing(store: Store) -> None:
    """Repeated deliveries are recognised by their identities."""
    runner = runner_of(store)
    for _ in range(2):
        fill(runner)
        runner.run()
    assert store.count("exchanges") == 30
    assert store.count("agent_events") == 30
    assert store.count("diagnoses") == 3
    assert store.count("scores") == 30


def test_a_conflicting_record_becomes_one_dead_letter(store: Store) -> None:
    """It becomes exactly one dead letter, wherever in a delivery it is."""
    runner = runner_of(store)
    runner.publish(accepted_of("agent-events", [build.event("s1", 0, event="tool_call", tool="exec")]))
    for number in range(2):
        later = datetime(2026, 10, 3 + number, tzinfo=UTC)
        other = build.event("s1", 0, event="tool_call", tool="password=hunter2-hunter2")
        delivery = [build.event("s1", 2 + number, event="x")] * number + [msgspec.structs.replace(other, ingested_at=later)]
        exchanges = [build.exchange("s1", 0), build.exchange("s1", 0, content_digest="1" * 16)]
        accepted = accepted_of("agent-events", delivery)
        accepted.extend(accepted_of("exchanges", exchanges))
        outcome = runner.publish(accepted)
        assert outcome["agent-events"].conflicts == [number]
        assert outcome["exchanges"].conflicts == [1]
        assert outcome["dead-letters"].written == {"dead_letters": 2} if number == 0 else outcome["dead-letters"].known == 2
    rows = store.cursor().execute("SELECT source, reason, detail, body::VARCHAR FROM dead_letters ORDER BY source").fetchall()
    assert [row[:2] for row in rows] == [("agent-events", "conflicting_id"), ("exchanges", "conflicting_id")]
    assert "event_id 'event_0': " in rows[0][2]
    assert "hunter2" not in rows[0][3]


def test_conflicts_are_counted_together_with_new_dead_letters(store: Store) -> None:
    """An import reports these numbers."""
    accepted = accepted_of("exchanges", [build.exchange("s1", 1, occurred_at=datetime(1970, 1, 1, tzinfo=UTC))])
    accepted.extend(accepted_of("exchanges", [build.exchange("s1", 0), build.exchange("s1", 0, content_digest="1" * 16)]))
    outcome = runner_of(store).publish(accepted)
    assert outcome["dead-letters"].written == {"dead_letters": 2}
    assert store.count("dead_letters") == 2


@pytest.mark.parametrize("positions", [1, 7, 1000])
def test_batch_size_does_not_change_what_is_derived(positions: int) -> None:
    """Small batches read and write the states at every step."""
    expected = {}
    for size in (20_000, positions):
        with Store(None) as store:
            runner = runner_of(store, size)
            fill(runner)
            runner.run()
            derived = {name: table(store, name) for name in derived_tables()}
        expected = expected or derived
        assert all(expected[name].equals(derived[name]) for name in derived_tables())


def test_derived_tables_can_be_rebuilt_from_the_sources(store: Store) -> None:
    """The derived tables are a cache: the same evidence gives the same results."""
    runner = runner_of(store)
    fill(runner)
    runner.publish(accepted_of("evaluation-requests", [evaluations.make_request()]))
    runner.run()
    before = {name: table(store, name) for name in derived_tables()}
    runner.rebuild()
    after = {name: table(store, name) for name in derived_tables()}
    assert all(before[name].equals(after[name]) for name in derived_tables())
    assert all(before[name].height for name in derived_tables())


def test_a_session_that_breaks_a_step_becomes_dead_letters_and_stops_no_other(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The records of a failing session become dead letters with their offsets; the others are diagnosed."""
    runner = runner_of(store)
    fill(runner)
    stage = next(stage for stage in TOPOLOGY if stage.name == "diagnosis")
    sound = stage.make_step(Policy(), read_no_judgements)

    def fragile(batch: StageBatch, states: Mapping[str, bytes]) -> StepOutcome:
        if "local/s1" in batch.keys():  # noqa: SIM118 - a batch is no dict
            raise ValueError("poison")
        return sound(batch, states)

    monkeypatch.setattr(runner._runner, "_steps", {**runner._runner._steps, "diagnosis": fragile})
    with caplog.at_level(logging.CRITICAL, logger="streams.engine.embedded"):
        runner.run()
    assert store.count("diagnoses") == 2
    [letters] = query_rows(store.cursor(), "dead_letters")
    assert letters["source"] == "agent-events"
    assert letters["stage"] == "diagnosis"
    assert letters["reason"] == "stage_failed"
    assert letters["records"] == 11
    assert letters["example"] == "ValueError: poison"


def test_a_rejected_record_is_stored_redacted(store: Store) -> None:
    """Rejected records are kept without their secrets."""
    bad = build.exchange("s1", 0, occurred_at=datetime(1970, 1, 1, tzinfo=UTC), user_message="password=hunter2-hunter2")
    runner = runner_of(store)
    runner.publish(accepted_of("exchanges", [build.exchange("s1", 1), bad]))
    assert store.count("exchanges") == 1
    row = store.cursor().execute("SELECT source, position, reason, detail, body::VARCHAR FROM dead_letters").fetchone()
    assert row is not None
    assert row[:3] == ("test", 1, "bounds")
    assert "Exchange.occurred_at" in row[3]
    assert "hunter2" not in row[4]
    assert "[SECRET:" in row[4]


def test_progress_of_an_import_is_committed_with_its_records(store: Store) -> None:
    """Progress without the records, or records without the progress, would lose or repeat work."""
    progress = ImportProgress(source="x", path="a", size=1, modified_ns=2, complete=True, settings_digest="d")
    runner_of(store).publish(accepted_of("exchanges", [build.exchange("s1", 0)]), [progress])
    assert query_rows(store.cursor(), "import_progress", {"source": "x"}) == [
        {"path": "a", "size": 1, "modified_ns": 2, "settings_digest": "d"}
    ]


def test_progress_is_reported_stage_by_stage(store: Store) -> None:
    """Long work reports its progress."""
    runner = runner_of(store)
    fill(runner)
    reports: list[StageProgress] = []
    runner.run(reports.append)
    assert [(report.stage, report.position, report.end) for report in reports] == [
        ("intake", 33, 33),
        ("scoring", 30, 30),
        ("diagnosis", 33, 33),
    ]


def test_every_stage_reads_and_writes_existing_topics() -> None:
    """The names in the topology are those of the schemas."""
    names = ("Exchange", "AgentEvent", "ScoringTask", "Score", "Diagnosis", "EvaluationRequest", "Evaluation")
    schema_topics = {topic for name in names for topic in schema_of(name).topics}
    assert {stage.source for stage in TOPOLOGY} | {sink for stage in TOPOLOGY for sink in stage.sinks} <= schema_topics
    assert tuple(sorted(derived_tables())) == ("diagnoses", "evaluations", "scores", "scoring_tasks")


def test_no_stage_s_sink_is_read_by_an_earlier_one() -> None:
    """The embedded runner makes a single pass in the order of the topology."""
    for number, stage in enumerate(TOPOLOGY):
        assert not set(stage.sinks) & {earlier.source for earlier in TOPOLOGY[: number + 1]}


def test_a_failed_stage_commits_nothing(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, states and watermark are committed together."""
    runner = runner_of(store)
    fill(runner)
    broken = replace(TOPOLOGY[0], name="intake")
    monkeypatch.setattr(
        "analytics.store.store.Transaction.set_watermark", lambda *_: (_ for _ in ()).throw(OSError("disk full"))
    )
    with pytest.raises(OSError, match="disk full"):
        runner.advance(broken)
    counts = [
        store.cursor().execute(f"SELECT count(*) FROM {full_name(schema_of(name))}").fetchone()
        for name in ("Score", "StageState")
    ]
    assert counts == [(0,), (0,)]


def test_an_oversized_exchange_becomes_a_dead_letter(store: Store) -> None:
    """A scoring task contains the whole exchange and must itself fit into a message."""
    runner = runner_of(store)
    texts = {"fits": 980_000, "does_not": 995_000}
    runner.publish(accepted_of("exchanges", [build.exchange(name, 0, "x" * size) for name, size in texts.items()]))
    runner.run()
    assert store.count("exchanges") == 1
    assert store.count("scores") == 1
    assert store.count("dead_letters") == 1


def test_a_state_may_be_larger_than_a_message(store: Store) -> None:
    """The state has three deferred exchanges of a megabyte each, and a session with fifty thousand different calls."""
    runner = runner_of(store)
    skipped = [build.exchange("s1", number, "x" * 900_000, turn_number=number) for number in (7, 8, 10)]
    call = build.event("s1", 0, event="tool_call", tool="exec")
    events = [msgspec.structs.replace(call, event_id=f"e{seq}", seq=seq, call_key=f"{seq:016x}") for seq in range(50_000)]
    runner.publish(accepted_of("exchanges", skipped))
    runner.publish(accepted_of("agent-events", events))
    runner.run()
    runner.publish(accepted_of("exchanges", [build.closing("s1", 11)]))
    runner.publish(accepted_of("agent-events", [build.closing("s1", 11)]))
    runner.run()
    reasons = store.cursor().execute("SELECT sampling_reason FROM scores ORDER BY turn_number").fetchall()
    assert reasons == [("last_turns",)] * 3
    assert store.cursor().execute("SELECT event_count FROM diagnoses").fetchall() == [(50_000,)]
    assert store.count("dead_letters") == 0
