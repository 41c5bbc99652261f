"""Sessions with only exchanges: their end is a run without evidence, until events arrive.

Events and exchanges arrive on two topics, in any order and at any time after the end.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders as build

from analytics.queries import queries, query_rows
from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.records import AgentEvent, Diagnosis, Record
from streams.engine.embedded import EmbeddedRunner
from streams.log.admission import EncodedRecords
from streams.steps.diagnosis import DiagnosisStep
from streams.upkeep.closing import EXPLICIT, closings, idle_closings

POLICY = Policy.model_validate(
    {"defaults": {"detectors": {"agents": {"scout": {"events": {"lostMemories": 2}, "transcripts": {"saturation": 60}}}}}}
)
RAW_EVENTS = (
    {"event": "tool_call", "tool": "exec", "args": {"command": "ls"}},
    {"event": "memory_event", "action": "miss"},
    {"event": "context_event", "saturation": 90},
    {"event": "session_end"},
)
SESSION_END, CLOSING = len(RAW_EVENTS) - 1, len(RAW_EVENTS)
LAST = 1_000
"""Number of the record that ends each session for good."""
CHOICES = st.lists(st.integers(0, CLOSING), max_size=12)
AGENTS = st.sampled_from([None, "scout", "guide"])
SOURCES = st.sampled_from([None, "openclaw"])


def topic(choices: Sequence[int], agent: str | None, source: str | None, ended_by: str | None) -> list[Record]:
    """Return events and ends of one session, and its last end; `ended_by` is the agent in the ends."""
    records = list[Record]()
    for number, choice in enumerate([*choices, CLOSING]):
        if choice == CLOSING:
            at = LAST if number == len(choices) else number
            records.append(msgspec.structs.replace(build.closing("s1", at), agent=ended_by))
        else:
            event = build.event("s1", number, **RAW_EVENTS[choice])
            seq = sum(isinstance(record, AgentEvent) for record in records)
            records.append(msgspec.structs.replace(event, seq=seq, agent=agent, source=source))
    return records


def without_offsets(record: Diagnosis) -> Diagnosis:
    """Return the record without fields that depend on offsets: revision, times, ids of events."""
    causes = tuple(msgspec.structs.replace(cause, evidence=()) for cause in record.failure_causes)
    neutral_values = {"revision": 0, "started_at": None, "ended_at": None, "closed_at": build.START, "evidence_digest": ""}
    return msgspec.structs.replace(record, failure_causes=causes, **neutral_values)


def diagnose_batches(records: Sequence[Record], batch_starts: Sequence[int] = ()) -> list[Diagnosis]:
    """Return the diagnoses of a topic whose batches begin at these indexes."""
    step = DiagnosisStep(POLICY)
    states: dict[str, bytes] = {}
    diagnoses: list[Diagnosis] = []
    for first, end in itertools.pairwise(sorted({0, len(records), *(start for start in batch_starts if start < len(records))})):
        outcome = step(build.batch("agent-events", records[first:end], first_offset=first), states)
        states |= outcome.states
        diagnoses += [record for _, record in outcome.records if isinstance(record, Diagnosis)]
    return diagnoses


@given(CHOICES, AGENTS, SOURCES, AGENTS, st.lists(st.integers(1, 12), max_size=4))
def test_the_diagnosis_of_events_does_not_depend_on_ends_before_or_between_them(
    choices: list[int], agent: str | None, source: str | None, ended_by: str | None, batch_starts: list[int]
) -> None:
    """A session may be closed before its events arrive: thresholds and agent still come from the events."""
    with_ends = [choice for choice in choices if choice != SESSION_END]
    events = [choice for choice in with_ends if choice != CLOSING]
    diagnoses = diagnose_batches(topic(with_ends, agent, source, ended_by), batch_starts)
    (expected,) = diagnose_batches(topic(events, agent, source, ended_by))
    assert without_offsets(diagnoses[-1]) == without_offsets(expected)


@given(CHOICES, AGENTS, SOURCES, AGENTS, st.lists(st.integers(1, 12), max_size=4))
def test_diagnoses_with_ends_do_not_depend_on_batch_boundaries(
    choices: list[int], agent: str | None, source: str | None, ended_by: str | None, batch_starts: list[int]
) -> None:
    """The first events may be in the batch of an earlier end, which must ignore them."""
    records = topic(choices, agent, source, ended_by)
    assert diagnose_batches(records, batch_starts) == diagnose_batches(records)


@given(CHOICES)
def test_revisions_increase_and_only_a_session_without_events_has_no_trust(choices: list[int]) -> None:
    """A session without evidence never scores 100, and never becomes a second run."""
    diagnoses = diagnose_batches(topic(choices, "scout", None, "scout"))
    revisions = [diagnosis.revision for diagnosis in diagnoses]
    assert revisions == list(range(len(diagnoses)))
    for diagnosis in diagnoses:
        has_no_events = diagnosis.event_count == 0
        assert (diagnosis.trust_score is None) == has_no_events
        assert (diagnosis.readiness_level == "insufficient_evidence") == has_no_events
        if has_no_events:
            assert not diagnosis.failure_causes
            assert diagnosis.started_at is None
            assert diagnosis.ended_at is None
            assert not diagnosis.cost_analysis.total_tokens


def test_a_repeated_end_gives_no_second_diagnosis_and_a_later_end_updates_it() -> None:
    """The same end may be recorded twice; a session that continues and ends again is one run with a later end."""
    ends = [build.closing("s1", number) for number in (5, 5, 4, 9)]
    assert [(diagnosis.revision, diagnosis.closed_at) for diagnosis in diagnose_batches(ends)] == [
        (0, ends[0].closed_at),
        (1, ends[3].closed_at),
    ]


def test_a_state_from_before_runs_of_exchanges_is_readable() -> None:
    """A worker may be upgraded while sessions are open."""
    event = build.event("s1", 0, **RAW_EVENTS[1])
    before = DiagnosisStep(POLICY)(build.batch("agent-events", [event]), {}).states
    (state,) = before.values()
    old = msgspec.msgpack.decode(state) | {"diagnoses": 0, "diagnosed_events": -1, "agent": None}
    outcome = DiagnosisStep(POLICY)(
        build.batch("agent-events", [build.closing("s1", 1)], first_offset=1), {"local/s1": msgspec.msgpack.encode(old)}
    )
    assert [record.event_count for _, record in outcome.records if isinstance(record, Diagnosis)] == [1]


class Fleet:
    """A store with its stages, to which parts of one session arrive in some order."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._now = build.START + timedelta(days=1)
        self._runner = EmbeddedRunner(store, POLICY, Redactor(POLICY.redaction), lambda: self._now)

    def take(self, part: str) -> None:
        """Ingest a part and run the stages."""
        getattr(self, part)()
        self._runner.run()

    def exchanges(self) -> None:
        """Ingest two exchanges, perhaps again."""
        self._publish("exchanges", [build.exchange("s1", number, agent="guide") for number in range(2)])

    def more(self) -> None:
        """Ingest one more exchange."""
        self._publish("exchanges", [build.exchange("s1", 7, agent="guide")])

    def events(self) -> None:
        """Ingest two events, perhaps again."""
        events = [build.event("s1", number, event_id=f"e{number}", event="memory_event", action="miss") for number in range(2)]
        self._publish("agent-events", [msgspec.structs.replace(event, agent="scout") for event in events])

    def idle(self) -> None:
        """Advance the clock by a day."""
        self._now += timedelta(days=1)
        for part in idle_closings(self.store, POLICY, self._now):
            self._runner.publish(part)

    def finalize(self) -> None:
        """End the session on request."""
        rows = query_rows(self.store.cursor(), "open_topics", {"sessions": ["s1"], "connection": None, "as_of": self._now})
        self._runner.publish(closings(rows, EXPLICIT, self._now))

    def rebuild(self) -> None:
        """Rebuild all derived records."""
        self._runner.rebuild()

    def runs(self) -> list[dict[str, object]]:
        """Return the runs as listed."""
        return query_rows(self.store.cursor(), "runs", dict.fromkeys(queries()["runs"].parameters))

    def _publish(self, topic: str, records: Sequence[Record]) -> None:
        accepted = EncodedRecords()
        for record in records:
            accepted.add(topic, encode(record))
        self._runner.publish(accepted)


@pytest.fixture
def fleet(store: Store) -> Fleet:
    """Return a fleet without records."""
    return Fleet(store)


@pytest.mark.parametrize("end", ["idle", "finalize"])
@pytest.mark.parametrize("order", list(itertools.permutations(["exchanges", "events", "end"])), ids="-".join)
def test_a_session_is_one_run_of_its_events_in_any_order_of_arrival(fleet: Fleet, order: tuple[str, ...], end: str) -> None:
    """Exchanges and events are on two topics, so they and the ends may arrive in any order."""
    for part in (*order, "events", "exchanges", "idle"):
        fleet.take(end if part == "end" else part)
    (run,) = fleet.runs()
    row = run["run_id"], run["event_count"], run["primary_failure_type"], run["agent"], run["exchanges_only"]
    assert row == ("run_001", 2, "memory_degradation", "scout", False)


@pytest.mark.parametrize("end", ["idle", "finalize"])
def test_a_session_with_only_exchanges_is_one_run_without_trust(fleet: Fleet, end: str) -> None:
    """It ended, so it is listed, without a score because there is no evidence, and it is the same after a rebuild."""
    for part in ("exchanges", end):
        fleet.take(part)
    (run,) = before = fleet.runs()
    row = run["run_id"], run["agent"], run["trust_score"], run["readiness_level"], run["event_count"], run["exchanges_only"]
    assert row == ("run_001", "guide", None, "insufficient_evidence", 0, True)
    assert run["started_at"] is None
    assert run["ended_at"] == build.START + timedelta(minutes=1)
    for part in ("idle", "exchanges", "rebuild", "idle"):
        fleet.take(part)
        assert fleet.runs() == before


def test_a_continued_session_of_exchanges_is_the_same_run_with_a_later_end(fleet: Fleet) -> None:
    """The list is ordered by the ends of runs, and a second run would count the session twice."""
    for part in ("exchanges", "idle"):
        fleet.take(part)
    (first,) = fleet.runs()
    for part in ("more", "idle", "idle"):
        fleet.take(part)
    (later,) = fleet.runs()
    assert first["run_id"] == "run_001"
    assert later["run_id"] == "run_001"
    assert _time(first) < _time(later)
    assert [count for (count,) in fleet.store.cursor().execute("SELECT count(*) FROM log.diagnoses").fetchall()] == [2]


def test_a_session_ended_by_an_older_version_becomes_a_run(fleet: Fleet) -> None:
    """An older database has ends on the topic exchanges alone; the next check for idle sessions turns them into runs."""
    fleet.take("exchanges")
    fleet._publish("exchanges", [build.closing("s1", 9)])
    assert fleet.runs() == []
    fleet.take("idle")
    (run,) = fleet.runs()
    assert run["exchanges_only"] is True


def test_anchors_are_not_runs(fleet: Fleet) -> None:
    """Anchors check the judge, without an agent."""
    anchor = build.exchange("s1", 0, connection="anchors", project="anchors.ops")
    fleet._publish("exchanges", [anchor])
    for part in ("idle", "finalize", "idle"):
        fleet.take(part)
    assert fleet.runs() == []


def _time(run: dict[str, object]) -> datetime:
    ended = run["closed_at"]
    assert isinstance(ended, datetime)
    return ended
