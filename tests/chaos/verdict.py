"""What must hold once it is quiet, and the counts that tell that it was not quiet before."""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

from chaos.records import Lying, read
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


def records(lying: Sequence[Lying]) -> list[Record]:
    """What decodes of it."""
    found = []
    for one in lying:
        try:
            found.append(decode(one.value or b""))
        except RecordError:
            continue
    return found


async def check(traffic: Traffic, connection: KafkaConnection, caps: Mapping[str, float]) -> dict[str, int]:
    """Check everything; what there was, in words and numbers. `caps` are in USD by project."""
    home, calls = traffic.plant.home, traffic.plant.asked
    events, judged, exchanges = [await read(connection, topic) for topic in ("agent-events", "judgements", "exchanges")]
    with Store(home.database) as store:
        check_nothing_lost_or_doubled(store, traffic.accepted)
        check_money(store, caps)
        check_judgements(store, None)
        check_calls(store, calls)
        check_poison(store, traffic.poison)
        check_never_asked_again(judged)
        diagnosed = encoded(store, "diagnoses")
        assert undisturbed(events, load_policy(home.policy)) == diagnosed, "the diagnoses are not those of an undisturbed run"
        return counts(store, traffic, {"exchanges": exchanges, "agent-events": events, "judgements": judged}) | {
            "calls to the judge": calls
        }


def check_money(store: Store, caps: Mapping[str, float]) -> None:
    """What judgements cost is what the current scores say, and no session is beyond its cap."""
    spent: Counter[tuple[str, str, str]] = Counter()
    for project, connection, session, cost in rows(store, "SELECT project, connection, session_id, cost_usd FROM judgements"):
        spent[project, connection, session] += nano_of(cost or 0)
    in_scores = sum(nano_of(cost) for (cost,) in rows(store, "SELECT cost_usd FROM scores"))
    assert sum(spent.values()) == in_scores, "the ledger's total is not that of the scores"
    assert [session for session, cost in spent.items() if cost > nano_of(caps[session[0]])] == [], "beyond their cap"
    with store.cursor() as cursor:
        assert query_rows(cursor, "open_reservations") == []


def check_calls(store: Store, calls: int) -> None:
    """Every call is accounted for.

    Of one that timed out nobody knows whether it arrived. One that was interrupted was reserved for once, and may have been tried
    as often as the judge is ever asked for one answer, because failures that are free of charge use no reservation up.
    """
    counted = {
        outcome: (attempts, count)
        for outcome, attempts, count in rows(store, "SELECT outcome, sum(attempts), count(*) FROM judgements GROUP BY ALL")
    }
    known = sum(attempts for outcome, (attempts, _) in counted.items() if outcome != "interrupted")
    unsure, interrupted = (counted.get(outcome, (0, 0))[which] for outcome, which in (("timeout", 0), ("interrupted", 1)))
    told = f"{calls} calls, {known} known, of which {unsure} timed out; {interrupted} interrupted"
    assert known - unsure <= calls <= known + MAX_ATTEMPTS * interrupted, told


def check_poison(store: Store, poison: Mapping[str, str]) -> None:
    """Every poison record is one dead letter, that says which topic it was on."""
    letters = Counter(rows(store, "SELECT digest, source FROM dead_letters WHERE reason <> 'conflicting_id'"))
    assert dict.fromkeys(poison.items(), 1) == dict(letters)


def check_never_asked_again(judged: Sequence[Lying]) -> None:
    """No money was set aside for a question after its answer was on the topic."""
    answered: dict[tuple[str, int], int] = {}
    for one in judged:
        record = next(iter(records([one])), None)
        if isinstance(record, Judgement) and record.outcome == "answered":
            answered.setdefault((record.fingerprint, one.partition), one.offset)
        elif isinstance(record, Reservation):
            at = answered.get((record.fingerprint, one.partition))
            assert at is None, f"reserved at {one.offset} for what was answered at {at}, partition {one.partition}"


def undisturbed(events: Sequence[Lying], policy: Policy) -> list[bytes]:
    """The diagnoses that the embedded runner makes of what lies on the topic, each record once."""
    good = []
    for one in events:
        try:
            decode(one.value or b"")
        except RecordError:
            continue
        good.append(one.value or b"")
    with tempfile.TemporaryDirectory() as folder, Store(Path(folder) / "undisturbed.duckdb") as store:
        with store.transaction() as transaction:
            transaction.append("agent-events", good, skip_known=True)
        runner_over(store, policy).run()
        return encoded(store, "diagnoses")


def counts(store: Store, traffic: Traffic, lying: Mapping[str, Sequence[Lying]]) -> dict[str, int]:
    """Counts for the report."""
    repeated = 0
    for topic in ("exchanges", "agent-events"):
        found = records(lying[topic])
        repeated += len(found) - len(set(map(identity, found)))
    outcomes = dict(rows(store, "SELECT outcome, count(*) FROM judgements GROUP BY ALL ORDER BY ALL"))
    ((diagnoses,),) = rows(store, "SELECT count(*) FROM log.diagnoses")
    ((conflicts,),) = rows(store, "SELECT count(*) FROM dead_letters WHERE reason = 'conflicting_id'")
    return {
        "exchanges accepted": len(traffic.accepted),
        "events on the topic": len(lying["agent-events"]),
        "records that came again": repeated,
        "ids that came with another content": conflicts,
        "poison records": len(traffic.poison),
        "diagnoses": diagnoses,
        "questions answered": outcomes.get("answered", 0),
        "calls interrupted": outcomes.get("interrupted", 0),
        "other outcomes": sum(count for outcome, count in outcomes.items() if outcome not in {"answered", "interrupted"}),
    }


def identity(record: Record) -> tuple[object, ...]:
    """What tells a record from others."""
    schema = current_schemas()[type(record).__name__]
    return type(record).__name__, *(getattr(record, name) for name in schema.identity)
