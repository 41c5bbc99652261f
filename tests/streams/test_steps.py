"""Laws of every step, however its topic is cut into batches."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support import builders as build

from audit.policy import Policy
from schemas.codec.single_object import encode
from schemas.records import AgentEvent, Exchange, Record, Score, ScoringTask
from streams.judging.judged_stages import SCORING, JudgingStep, read_no_judgements
from streams.stage_batches import RecordBatch, StageBatch, Step, StepOutcome
from streams.steps.diagnosis import DiagnosisStep
from streams.steps.intake import IntakeStep

SESSIONS = ("s1", "s2", "s3")
RAW_EVENTS = (
    {"event": "tool_call", "tool": "exec", "args": {"command": "ls"}},
    {"event": "tool_call", "tool": "read", "args": {"path": "a"}},
    {"event": "retry_event"},
    {"event": "memory_event", "action": "miss"},
    {"event": "tool_output", "used": False},
    {"event": "context_event", "saturation": 96},
    {"event": "token_usage", "usage": {"total": 7000}},
    {"event": "skill_event", "status": "failed"},
    {"event": "session_end"},
    {"event": "decision"},
)
RESPONSES = ("It is done.", "", "I can't do that.", "I disagree, the disk is full.")


def number_per_session(choices: Sequence[tuple[str, int]], make: Callable[[str, int, int], Record]) -> list[Record]:
    """Return records in the order of the choices, numbered within their session."""
    counts = dict.fromkeys(SESSIONS, 0)
    records = []
    for session, choice in choices:
        records.append(make(session, counts[session], choice))
        counts[session] += 1
    return records


def event_or_closing(session: str, number: int, choice: int) -> Record:
    """Return an event, or a closing if the choice is beyond the events."""
    return build.closing(session, number) if choice == len(RAW_EVENTS) else build.event(session, number, **RAW_EVENTS[choice])


def exchange_or_closing(session: str, number: int, choice: int) -> Record:
    """Return an exchange, or a closing if the choice is beyond the responses."""
    return build.closing(session, number) if choice == len(RESPONSES) else build.exchange(session, number, RESPONSES[choice])


def topic_of(make: Callable[[str, int, int], Record], kinds: int) -> st.SearchStrategy[list[Record]]:
    """Generate topics with interleaved records of several sessions."""
    choices = st.lists(st.tuples(st.sampled_from(SESSIONS), st.integers(0, kinds)), min_size=1, max_size=60)
    return choices.map(lambda chosen: number_per_session(chosen, make))


EVENT_TOPICS = topic_of(event_or_closing, len(RAW_EVENTS))
EXCHANGE_TOPICS = topic_of(exchange_or_closing, len(RESPONSES))
CUTS = st.lists(st.integers(1, 59), max_size=6)


def parts_of(records: Sequence[Record], cuts: Sequence[int]) -> list[tuple[int, Sequence[Record]]]:
    """Return a topic cut at these indexes, each part with its first offset."""
    places = sorted({0, len(records), *(cut for cut in cuts if cut < len(records))})
    return [(start, records[start:stop]) for start, stop in itertools.pairwise(places)]


def carried_through(
    step: Callable[[Any, dict[str, bytes]], StepOutcome], batches: Sequence[StageBatch | RecordBatch]
) -> tuple[list[tuple[str, Record]], dict[str, bytes]]:
    """Return a step's records for consecutive batches, and the states after the last."""
    states: dict[str, bytes] = {}
    outputs = []
    for batch in batches:
        keys = {key for _, key, _ in batch.records()}
        outcome = step(batch, {key: state for key, state in states.items() if key in keys})
        states |= outcome.states
        outputs += outcome.records
    return outputs, states


def run_in_batches(step: Step, topic: str, records: Sequence[Record], cuts: Sequence[int] = ()) -> list[tuple[str, Record]]:
    """Return a step's records for a topic cut into batches at these indexes."""
    batches = [build.batch(topic, part, first_offset=offset) for offset, part in parts_of(records, cuts)]
    return carried_through(step, batches)[0]


@given(EVENT_TOPICS, CUTS)
def test_diagnoses_do_not_depend_on_batch_boundaries(records: list[Record], cuts: list[int]) -> None:
    """Batch sizes depend on the load; evidence must not."""
    step = DiagnosisStep(Policy())
    assert run_in_batches(step, "agent-events", records) == run_in_batches(step, "agent-events", records, cuts)


@given(EXCHANGE_TOPICS, CUTS)
def test_sampling_decisions_do_not_depend_on_batch_boundaries(records: list[Record], cuts: list[int]) -> None:
    """The last turns are kept in the state, which is encoded between batches."""
    step = IntakeStep(Policy())
    assert run_in_batches(step, "exchanges", records) == run_in_batches(step, "exchanges", records, cuts)


@given(EXCHANGE_TOPICS, CUTS)
def test_intake_decides_alike_on_records_and_on_columns(records: list[Record], cuts: list[int]) -> None:
    """Records in one process, columns with original bytes in a worker, and columns of a table give the same scores and states."""
    step = IntakeStep(Policy())
    columns = [build.batch("exchanges", part, offset) for offset, part in parts_of(records, cuts)]
    delivered = [build.batch("exchanges", part, offset, delivered=True) for offset, part in parts_of(records, cuts)]
    single = [RecordBatch(list(batch.records())) for batch in columns]
    complete = [build.batch("exchanges", records, delivered=True)]
    expected = carried_through(step, columns)
    assert [carried_through(step, batches) for batches in (delivered, single, complete)] == [expected] * 3


@pytest.mark.parametrize(
    ("step", "topic", "topics"),
    [(DiagnosisStep(Policy()), "agent-events", EVENT_TOPICS), (IntakeStep(Policy()), "exchanges", EXCHANGE_TOPICS)],
    ids=["diagnosis", "intake"],
)
@given(data=st.data())
def test_a_redelivery_changes_nothing(
    step: Step, topic: str, topics: st.SearchStrategy[list[Record]], data: st.DataObject
) -> None:
    """Delivery between stages is at least once, so the state has the last offset seen."""
    records = data.draw(topics)
    repeated_index = data.draw(st.integers(0, len(records) - 1))
    first = step(build.batch(topic, records), {})
    second = step(build.batch(topic, records[repeated_index:], first_offset=repeated_index), first.states)
    assert second.records == []
    assert first.states == first.states | second.states


@given(EVENT_TOPICS)
def test_a_session_s_diagnosis_does_not_depend_on_other_sessions(records: list[Record]) -> None:
    """Partitions may interleave sessions in any order."""
    step = DiagnosisStep(Policy())
    together = run_in_batches(step, "agent-events", records)
    alone = [
        answer
        for session in SESSIONS
        if (own := [record for record in records if record.session_id == session])  # type: ignore[attr-defined]
        for answer in run_in_batches(step, "agent-events", own)
    ]
    by_session = sorted(together, key=lambda answer: (answer[1].session_id, answer[1].revision))  # type: ignore[attr-defined]
    assert by_session == alone


@given(EXCHANGE_TOPICS)
def test_every_exchange_gets_one_decision_and_at_most_one_revision(records: list[Record]) -> None:
    """Each exchange gets a task or a score at once; all but first turns may get another as one of the last turns."""
    answers = [record for _, record in run_in_batches(IntakeStep(Policy()), "exchanges", records)]
    firsts = sorted(
        record.exchange_id for record in answers if isinstance(record, (Score, ScoringTask)) and record.revision == 0
    )
    assert sorted(record.exchange_id for record in records if isinstance(record, Exchange)) == firsts
    later = [record for record in answers if isinstance(record, (Score, ScoringTask)) and record.revision > 0]
    assert all(isinstance(record, ScoringTask) and record.sampling_reason == "last_turns" for record in later)
    assert len({record.exchange_id for record in later}) == len(later)


def test_the_last_turns_become_tasks_when_the_session_closes() -> None:
    """The last three of ten turns become tasks; 10 and 7 were sampled as every third turn, and 1 to 5 as first turns."""
    records = [build.exchange("s1", number) for number in range(10)] + [build.closing("s1", 10)]
    answers = [record for _, record in run_in_batches(IntakeStep(Policy()), "exchanges", records)]
    skipped = [record.turn_number for record in answers if isinstance(record, Score)]
    last = [
        record.turn_number for record in answers if isinstance(record, ScoringTask) and record.sampling_reason == "last_turns"
    ]
    assert skipped == [6, 8, 9]
    assert last == [8, 9, 10]


def test_a_state_from_before_last_turns_were_kept_is_readable() -> None:
    """After an upgrade during a session, the old state has the skipped turns, but not the sampled ones."""
    sampling = [10, [[8, 8, [8, "s1:7", 0, encode(build.exchange("s1", 7))]], [9, 9, None], [10, 10, None]]]
    state = msgspec.msgpack.encode([sampling, 10])
    outcome = IntakeStep(Policy())(build.batch("exchanges", [build.closing("s1", 10)], first_offset=10), {"local/s1": state})
    assert [
        (task.exchange_id, task.revision, task.sampling_reason, task.sampling_probability)
        for _, task in outcome.records
        if isinstance(task, ScoringTask)
    ] == [("s1:7", 1, "last_turns", 1.0)]


def test_a_disabled_project_is_not_scored() -> None:
    """`enabled: false` means no score and no task for any record."""
    policy = Policy.model_validate({"projects": {"ops": {"enabled": False}}})
    assert run_in_batches(IntakeStep(policy), "exchanges", [build.exchange("s1", 0), build.closing("s1", 1)]) == []


def test_without_a_judge_the_judged_tiers_are_unscored_with_a_reason() -> None:
    """Unscored is a state, not a number: a tier that was not judged must not look passed."""
    exchange = build.exchange("s1", 0, agent_thinking="Let me see.")
    [(_, task)] = run_in_batches(IntakeStep(Policy()), "exchanges", [exchange])
    [(topic, score)] = run_in_batches(JudgingStep(SCORING, Policy(), read_no_judgements), "scoring-tasks", [task])
    assert isinstance(score, Score)
    assert topic == "scores"
    states = [score.tier2_state, score.tier2_5_state, score.tier3_state, score.disposition]
    assert states == ["unscored"] * 4
    assert [score.tier2_reason, score.tier2_5_reason, score.tier3_reason] == ["no_judge"] * 3
    assert [score.tier2_score, score.tier2_5_alignment, score.tier3_score] == [None] * 3


def test_tier_2_5_does_not_apply_without_thinking() -> None:
    """Without thinking the tier does not apply, which is not the same as unscored."""
    [(_, task)] = run_in_batches(IntakeStep(Policy()), "exchanges", [build.exchange("s1", 0)])
    [(_, score)] = run_in_batches(JudgingStep(SCORING, Policy(), read_no_judgements), "scoring-tasks", [task])
    assert isinstance(score, Score)
    assert score.tier2_5_state == "not_applicable"
    assert score.tier2_5_reason == "no_thinking"


def test_an_end_without_new_events_gives_no_second_diagnosis() -> None:
    """A session_end event and a recorded closing are one run, not two."""
    records = [
        build.event("s1", 0, event="decision"),
        build.event("s1", 1, event="session_end"),
        build.closing("s1", 2, "idle"),
    ]
    answers = run_in_batches(DiagnosisStep(Policy()), "agent-events", records)
    assert [record.closed_reason for _, record in answers] == ["session_end"]  # type: ignore[attr-defined]


def test_a_continued_session_is_diagnosed_again_with_the_next_revision() -> None:
    """The later diagnosis covers all events."""
    records: list[Record] = [build.event("s1", 0, event="decision"), build.closing("s1", 1)]
    records += [build.event("s1", 2, event="memory_event", action="miss"), build.closing("s1", 3)]
    answers = run_in_batches(DiagnosisStep(Policy()), "agent-events", records)
    diagnoses = [(record.revision, record.event_count, record.primary_failure_type) for _, record in answers]  # type: ignore[attr-defined]
    assert diagnoses == [(0, 1, None), (1, 2, "memory_degradation")]


def test_evidence_in_records_is_bounded_while_counts_stay_exact() -> None:
    """A loop of ten thousand calls must fit into a message."""
    call = {"event": "tool_call", "tool": "exec", "args": {"command": "ls"}}
    event = build.event("s1", 0, **call)
    events: list[AgentEvent] = [msgspec.structs.replace(event, seq=number, event_id=f"e{number}") for number in range(10_000)]
    [(_, diagnosis)] = run_in_batches(DiagnosisStep(Policy()), "agent-events", [*events, build.closing("s1", 1)])
    [loop, _cost] = diagnosis.failure_causes  # type: ignore[attr-defined]
    assert loop.evidence_count == 10_000
    assert len(loop.evidence) == 100


def test_the_first_record_of_a_session_names_its_project() -> None:
    """A later record with another project must not change an earlier diagnosis, wherever batches are cut."""
    first, second = build.event("s1", 0, event="decision"), build.event("s1", 1, event="decision")
    records = [first, build.closing("s1", 1), replace_project(second, "other"), build.closing("s1", 2)]
    answers = run_in_batches(DiagnosisStep(Policy()), "agent-events", records)
    assert [record.project for _, record in answers] == ["ops", "ops"]  # type: ignore[attr-defined]


def replace_project(event: AgentEvent, project: str) -> AgentEvent:
    """Return the event with another project."""
    return msgspec.structs.replace(event, project=project)
