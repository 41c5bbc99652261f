"""Checks after a chaos run, and counts that show how much happened in it."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from chaos.records import RawRecord, read_topic
from chaos.traffic import Traffic
from support.engines import runner_over
from support.invariants import check_judgements, check_nothing_lost_or_doubled, encoded, rows

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.cost import nano_of
from audit.policy import Policy, load_policy
from schemas.codec.single_object import decode
from schemas.errors import RecordError
from schemas.records import Judgement, Record, Reservation
from schemas.registry import current_schemas
from streams.judges.live import MAX_ATTEMPTS
from streams.kafka.connection import KafkaConnection


def decode_all(raw_records: Sequence[RawRecord]) -> list[Record]:
    """Return the records that can be decoded."""
    records = []
    for raw_record in raw_records:
        try:
            records.append(decode(raw_record.value or b""))
        except RecordError:
            continue
    return records


async def check(traffic: Traffic, connection: KafkaConnection, caps: Mapping[str, float]) -> dict[str, int]:
    """Check all laws and return the counts for the report. `caps` are in USD by project."""
    home = traffic.plant.home
    calls = traffic.plant.judge_calls
    events = await read_topic(connection, "agent-events")
    judgements = await read_topic(connection, "judgements")
    exchanges = await read_topic(connection, "exchanges")
    with Store(home.database) as store:
        check_nothing_lost_or_doubled(store, traffic.accepted)
        check_money(store, caps)
        check_judgements(store, None)
        check_calls(store, calls)
        check_poison(store, traffic.poison)
        check_never_asked_again(judgements)
        expected_diagnoses = diagnose_undisturbed(events, load_policy(home.policy))
        assert encoded(store, "diagnoses") == expected_diagnoses, "the diagnoses differ from those of an undisturbed run"
        return count_records(store, traffic, {"exchanges": exchanges, "agent-events": events, "judgements": judgements}) | {
            "calls to the judge": calls
        }


def check_money(store: Store, caps: Mapping[str, float]) -> None:
    """Check that the costs of judgements and scores agree, and that no session exceeds its cap."""
    spent: Counter[tuple[str, str, str]] = Counter()
    for project, connection, session, cost in rows(store, "SELECT project, connection, session_id, cost_usd FROM judgements"):
        spent[project, connection, session] += nano_of(cost or 0)
    cost_of_scores = sum(nano_of(cost) for (cost,) in rows(store, "SELECT cost_usd FROM scores"))
    assert sum(spent.values()) == cost_of_scores, "judgements and scores have different total costs"
    assert [session for session, cost in spent.items() if cost > nano_of(caps[session[0]])] == [], "sessions exceed their cap"
    with store.cursor() as cursor:
        assert query_rows(cursor, "open_reservations") == []


def check_calls(store: Store, calls: int) -> None:
    """Check that every call to the judge is accounted for.

    A call that timed out may or may not have arrived. An interrupted call has one reservation but up to MAX_ATTEMPTS attempts,
    because failures that cost nothing consume no reservation.
    """
    counts_by_outcome = {
        outcome: (attempts, count)
        for outcome, attempts, count in rows(store, "SELECT outcome, sum(attempts), count(*) FROM judgements GROUP BY ALL")
    }
    recorded = sum(attempts for outcome, (attempts, _) in counts_by_outcome.items() if outcome != "interrupted")
    timed_out, _ = counts_by_outcome.get("timeout", (0, 0))
    _, interrupted = counts_by_outcome.get("interrupted", (0, 0))
    message = f"{calls} calls; {recorded} recorded, {timed_out} of them timed out; {interrupted} interrupted"
    assert recorded - timed_out <= calls <= recorded + MAX_ATTEMPTS * interrupted, message


def check_poison(store: Store, poison: Mapping[str, str]) -> None:
    """Check that every poison record is one dead letter with its topic."""
    letters = Counter(rows(store, "SELECT digest, source FROM dead_letters WHERE reason <> 'conflicting_id'"))
    assert dict(letters) == dict.fromkeys(poison.items(), 1)


def check_never_asked_again(judgements: Sequence[RawRecord]) -> None:
    """Check that no question has a reservation after its answer on the topic."""
    answered: dict[tuple[str, int], int] = {}
    for raw_record in judgements:
        partition = raw_record.partition
        offset = raw_record.offset
        for record in decode_all([raw_record]):
            if isinstance(record, Judgement) and record.outcome == "answered":
                answered.setdefault((record.fingerprint, partition), offset)
            elif isinstance(record, Reservation):
                answer_offset = answered.get((record.fingerprint, partition))
                assert answer_offset is None, f"partition {partition}: reserved at {offset}, but answered at {answer_offset}"


def diagnose_undisturbed(events: Sequence[RawRecord], policy: Policy) -> list[bytes]:
    """Return the diagnoses that the embedded runner derives from the records of the topic, without repetitions."""
    valid_values = []
    for raw_record in events:
        try:
            decode(raw_record.value or b"")
        except RecordError:
            continue
        valid_values.append(raw_record.value or b"")
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "undisturbed.duckdb") as store:
        with store.transaction() as transaction:
            transaction.append("agent-events", valid_values, skip_known=True)
        runner_over(store, policy).run()
        return encoded(store, "diagnoses")


def count_records(store: Store, traffic: Traffic, topics: Mapping[str, Sequence[RawRecord]]) -> dict[str, int]:
    """Return the counts for the report."""
    repeated = 0
    for topic in ("exchanges", "agent-events"):
        records = decode_all(topics[topic])
        repeated += len(records) - len(set(map(identity, records)))
    outcomes = dict(rows(store, "SELECT outcome, count(*) FROM judgements GROUP BY ALL ORDER BY ALL"))
    ((diagnoses,),) = rows(store, "SELECT count(*) FROM log.diagnoses")
    ((conflicts,),) = rows(store, "SELECT count(*) FROM dead_letters WHERE reason = 'conflicting_id'")
    return {
        "exchanges accepted": len(traffic.accepted),
        "events on the topic": len(topics["agent-events"]),
        "records that came again": repeated,
        "ids that came with another content": conflicts,
        "poison records": len(traffic.poison),
        "diagnoses": diagnoses,
        "questions answered": outcomes.get("answered", 0),
        "calls interrupted": outcomes.get("interrupted", 0),
        "other outcomes": sum(count for outcome, count in outcomes.items() if outcome not in {"answered", "interrupted"}),
    }


def identity(record: Record) -> tuple[object, ...]:
    """Return the fields that identify a record."""
    schema = current_schemas()[type(record).__name__]
    return type(record).__name__, *(getattr(record, name) for name in schema.identity)
