"""Retention: what goes, what stays, and what a session that goes on still knows."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import polars as pl
import pytest
from support import evaluation_builders as evaluations
from support.builders import closing, event, exchange, judgement, reservation, score
from support.clocks import TickingClock
from support.engines import policy_of, rows, runner_over
from support.sample_records import SampleMaker

from analytics.deletion.retention import SESSION_STAGES, TRUNCATED_STAGE, complete_since
from analytics.queries import query_rows
from analytics.store.store import Outbox, Store, Transaction
from analytics.sums.daily import refresh_daily
from audit.policy import Policy, ProjectSettings, Sampling
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.records import DeadLetter, Exchange, Heartbeat, Record
from schemas.registry import schema_of
from streams.engine.embedded import EmbeddedRunner
from streams.judging.judged_stages import EVALUATION
from streams.judging.rejudging import revise
from streams.log.admission import EncodedRecords
from streams.steps.intake import IntakeState
from streams.topology import TOPOLOGY
from streams.upkeep.deletion import cutoff, purge
from streams.watch.rules import LOOK_BACK_DAYS

NOW = datetime(2026, 11, 1, 12, 0, tzinfo=UTC)
OLD, NEW = NOW - timedelta(days=100), NOW - timedelta(days=10)
POLICY = Policy()


def publish(store: Store, topic: str, *records: Record, policy: Policy = POLICY) -> None:
    """Ingest records and run all stages."""
    accepted = EncodedRecords()
    for record in records:
        accepted.add(topic, encode(record))
    runner = EmbeddedRunner(store, policy, Redactor(policy.redaction), TickingClock(NOW))
    runner.publish(accepted)
    runner.run()


def build_exchange(session: str, number: int, at: datetime, **fields: object) -> Exchange:
    """Return an exchange that occurred at a time."""
    return exchange(session, number, occurred_at=at, ingested_at=at + timedelta(seconds=5), **fields)


def count(store: Store, table: str) -> int:
    """Return the number of rows of a log table."""
    return len(rows(store, table, "1"))


def test_retention_deletes_complete_days() -> None:
    """The cutoff is midnight, because a partial day would have other averages."""
    assert cutoff(NOW, 90) == datetime(2026, 8, 3, tzinfo=UTC)
    assert cutoff(NOW, None) < datetime(2000, 1, 1, tzinfo=UTC)


def test_old_exchanges_are_deleted_with_their_scores(store: Store) -> None:
    """The time of the exchange counts, not the time of arrival."""
    publish(store, "exchanges", build_exchange("old", 1, OLD), build_exchange("new", 1, NEW))

    purged = purge(store, POLICY, NOW)

    assert purged.exchanges == 1
    assert purged.scores == 1
    assert rows(store, "exchanges", "exchange_id") == [("new:1",)]
    assert rows(store, "scores", "exchange_id") == [("new:1",)]
    assert rows(store, "scoring_tasks", "exchange_id") == [("new:1",)]
    assert purge(store, POLICY, NOW).rows.total() == 0


def test_every_record_about_an_old_exchange_is_deleted(store: Store) -> None:
    """The judge's explanation would otherwise quote its text."""
    publish(store, "exchanges", build_exchange("s", 1, OLD))
    with store.transaction() as transaction:
        transaction.append("judgements", [encode(reservation("s", 1)), encode(judgement("s", 1, judged_at=NEW))])
        transaction.append("scores", [encode(score("lost", 1, exchange_at=OLD)), encode(score("late", 1, exchange_at=NEW))])

    purge(store, POLICY, NOW)

    remaining = {table: count(store, table) for table in ("exchanges", "judgements", "reservations", "scoring_tasks", "scores")}
    assert remaining == {"exchanges": 0, "judgements": 0, "reservations": 0, "scoring_tasks": 0, "scores": 1}


def test_an_exchange_is_deleted_in_every_revision_and_counted_once(store: Store) -> None:
    """An earlier revision would still contain half of its text."""
    publish(store, "exchanges", build_exchange("s", 1, OLD), build_exchange("s", 2, OLD))
    revisions = revise(store, POLICY, [build_exchange("s", 1, OLD, agent_response="Later.")], NOW)
    publish(store, "exchanges", *revisions.records)
    assert count(store, "scores") - 1 == 2

    purged = purge(store, POLICY, NOW)

    assert purged.exchanges == 2
    assert purged.scores == 2
    tables = ("exchanges", "scores", "scoring_tasks", "judging_requests")
    assert dict.fromkeys(tables, 0) == {table: count(store, table) for table in tables}


def test_each_project_has_its_own_retention(store: Store) -> None:
    """Null keeps records forever, and other projects have other limits."""
    policy = Policy(projects={"brief": ProjectSettings(retention_days=5), "ever": ProjectSettings(retention_days=None)})
    publish(
        store,
        "exchanges",
        *(build_exchange(name, 1, at, project=name) for name, at in (("brief", NEW), ("ever", OLD), ("ops", NEW))),
    )

    purge(store, policy, NOW)

    assert rows(store, "exchanges", "project") == [("ever",), ("ops",)]


def test_positions_are_never_reused(path: Path) -> None:
    """After retention emptied a topic, new records on old positions would be mistaken for processed ones."""
    with Store(path) as store:
        publish(store, "exchanges", build_exchange("old", 1, OLD), build_exchange("old", 2, OLD))
        publish(store, "agent-events", event("old", 1))
        purge(store, POLICY, NOW, 1)
        assert [count(store, table) for table in ("exchanges", "agent_events")] == [0, 0]
    with Store(path) as store:
        publish(store, "exchanges", build_exchange("new", 1, NEW))
        publish(store, "agent-events", event("new", 1, type="session_end"))
        assert rows(store, "exchanges", "_offset, exchange_id") == [(2, "new:1")]
        assert rows(store, "scores", "exchange_id") == [("new:1",)]
        assert rows(store, "diagnoses", "session_id") == [("new",)]


def test_a_continued_session_keeps_its_count(store: Store) -> None:
    """The next turn is not a first turn although these were deleted, and the spent money is not returned."""
    publish(store, "exchanges", *(build_exchange("s", number, OLD if number < 6 else NEW) for number in range(1, 8)))

    purge(store, POLICY, NOW)
    publish(store, "exchanges", build_exchange("s", 8, NEW))

    assert rows(store, "scores", "exchange_id, turn_number") == [("s:6", 6), ("s:7", 7), ("s:8", 8)]


def test_a_rebuild_skips_a_session_without_its_start(store: Store) -> None:
    """Its turns would be counted from one, and its diagnosis would miss half of the evidence."""
    publish(
        store,
        "exchanges",
        *(build_exchange("s", number, OLD if number < 6 else NEW) for number in range(1, 8)),
        build_exchange("whole", 1, NEW),
    )
    events = [msgspec.structs.replace(event("s", n), occurred_at=OLD if n < 5 else NEW, ingested_at=NEW) for n in range(8)]
    end = msgspec.structs.replace(event("s", 8, type="session_end"), occurred_at=NEW, ingested_at=NEW)
    publish(store, "agent-events", *events, end)
    purge(store, POLICY, NOW)
    tables = {"scores": "* EXCLUDE (_offset)", "diagnoses": "*", "stage_state": "stage, key, state"}
    rows_before = {table: rows(store, table, columns) for table, columns in tables.items()}
    assert rows(store, "scores", "exchange_id, turn_number") == [("s:6", 6), ("s:7", 7), ("whole:1", 1)]

    runner_over(store).rebuild()
    assert rows(store, "scores", tables["scores"]) == rows_before["scores"]
    assert rows(store, "diagnoses", tables["diagnoses"]) == rows_before["diagnoses"]
    publish(store, "exchanges", build_exchange("s", 8, NEW))

    assert rows(store, "scores WHERE exchange_id = 's:8'", "turn_number") == [(8,)]


def test_a_session_without_records_is_forgotten(store: Store) -> None:
    """Its states and its end are deleted, so a later session with its id is a new one."""
    publish(
        store,
        "exchanges",
        build_exchange("s", 1, OLD),
        msgspec.structs.replace(closing("s", 1), closed_at=OLD, ingested_at=OLD),
    )
    publish(store, "exchanges", build_exchange("on", 1, OLD), build_exchange("on", 2, NEW))

    purge(store, POLICY, NOW)

    assert count(store, "session_closings") == 0
    assert set(rows(store, "stage_state", "stage, key")) == {
        ("intake", "local/on"),
        ("scoring", "local/on"),
        (TRUNCATED_STAGE, "local/on"),
    }


def test_exchanges_kept_in_a_state_are_deleted_too(store: Store) -> None:
    """A state contains skipped exchanges completely, and must not keep them longer than the tables."""
    policy = policy_of(sampling=Sampling(always_score_first=0, routine_interval=1000))
    publish(store, "exchanges", build_exchange("s", 1, OLD), build_exchange("s", 2, NEW), policy=policy)

    purge(store, policy, NOW)

    ((state,),) = rows(store, "stage_state WHERE stage = 'intake'", "state")
    sampling = msgspec.msgpack.decode(state, type=IntakeState).sampling
    assert [one.exchange_id for one in sampling.deferred] == ["s:2"]
    assert sampling.exchanges == 2
    publish(store, "exchanges", closing("s", 1), policy=policy)
    assert rows(store, "scoring_tasks", "exchange_id") == [("s:2",)]


def test_unscored_exchanges_are_kept(store: Store) -> None:
    """A stage that lags behind finds its input, and the next run deletes it."""
    with store.transaction() as transaction:
        transaction.append("exchanges", [encode(build_exchange("s", 1, OLD))])
        transaction.append("agent-events", [encode(event("s", 1))])
    purge(store, POLICY, NOW, 1)
    assert [count(store, table) for table in ("exchanges", "agent_events")] == [1, 1]
    runner = runner_over(store)
    runner.advance(TOPOLOGY[0])

    purge(store, POLICY, NOW, 1)
    assert [count(store, table) for table in ("exchanges", "scoring_tasks")] == [1, 1]

    runner.run()
    purge(store, POLICY, NOW, 1)
    assert [count(store, table) for table in ("exchanges", "scoring_tasks", "agent_events")] == [0, 0, 0]


def test_stages_skip_records_that_were_deleted_unread(store: Store) -> None:
    """A gap in a topic is not its end."""
    with store.transaction() as transaction:
        transaction.append("exchanges", [encode(build_exchange("s", number, NEW)) for number in range(10)])
        holes = pl.DataFrame({"_topic": "exchanges", "_partition": 0, "_offset": list(range(8))})
        assert transaction.delete_at("Exchange", holes) == 8
    runner = EmbeddedRunner(store, POLICY, Redactor(POLICY.redaction), TickingClock(NOW), batch_positions=2)

    runner.run()

    assert sorted(one for (one,) in rows(store, "scores", "exchange_id")) == ["s:8", "s:9"]


def test_baselines_incidents_and_anchors_stay(store: Store, samples: SampleMaker) -> None:
    """They are small, and the watch needs them for longer than texts may be kept."""
    tables = {"Baseline": "baselines", "Incident": "incidents", "Anchor": "anchors", "Erasure": "erasures"}
    with store.transaction() as transaction:
        for name, topic in tables.items():
            transaction.append(topic, [encode(record) for record in samples.records(name, 5)])
        review = samples.records("Review", 1)[0]
        decision = msgspec.structs.replace(review, kind="incident_decision", occurred_at=OLD, ingested_at=NEW)
        transaction.append("reviews", [encode(decision)])

    purge(store, POLICY, NOW, 1)

    assert [count(store, schema_of(name).table) for name in (*tables, "Review")] == [5] * 4 + [1]


def test_records_without_an_exchange_are_deleted_by_their_own_time(store: Store) -> None:
    """Heartbeats, dead letters and diagnoses belong to a day, too."""
    with store.transaction() as transaction:
        for occurred_at in (OLD, NEW):
            heartbeat = Heartbeat(connection="local", project="ops", session_id="s", occurred_at=occurred_at, ingested_at=NEW)
            letter = DeadLetter(
                dead_letter_id=str(occurred_at), source="http", position=0, stage="http", reason="no", detail="", digest="", size=0,
                body=b"", rejected_at=occurred_at,
            )  # fmt: skip
            transaction.append("heartbeats", [encode(heartbeat)])
            transaction.append("dead-letters", [encode(letter)])

    purge(store, POLICY, NOW)

    assert [count(store, table) for table in ("heartbeats", "dead_letters")] == [1, 1]


def test_an_evaluation_is_deleted_with_its_request_and_judgements(store: Store) -> None:
    """If only some of the three were deleted, a rebuild would make another evaluation of the rest."""

    def judged_request(name: str, at: datetime, judged_at: datetime) -> list[tuple[str, Record]]:
        request = evaluations.make_request(evaluation_id=name, request_id=f"request of {name}", requested_at=at)
        question = next(EVALUATION.open(request, POLICY, ()).judging())
        judgement = evaluations.judgement(question, "{}", subject_id=name, judgement_id=name, judged_at=judged_at)
        return [("judgements", judgement), ("evaluation-requests", request)]

    with store.transaction() as transaction:
        for topic, record in [
            *judged_request("gone", OLD, OLD),
            *judged_request("again", NEW, OLD),
            *judged_request("answered", OLD, NEW),
        ]:
            transaction.append(topic, [encode(record)])
    runner_over(store).run()
    with store.transaction() as transaction:
        transaction.append("evaluation-requests", [encode(judged_request("waits", OLD, OLD)[1][1])])

    purge(store, POLICY, NOW)

    assert rows(store, "evaluations", "evaluation_id") == [("again",), ("answered",)]
    assert rows(store, "evaluation_requests", "evaluation_id") == [("again",), ("answered",), ("waits",)]
    assert rows(store, "judgements", "subject_id") == [("again",), ("answered",)]
    evaluations_before = rows(store, "evaluations", "* EXCLUDE (_offset)", "evaluation_id")
    runner_over(store).rebuild()
    assert (
        rows(store, "evaluations WHERE evaluation_id <> 'waits'", "* EXCLUDE (_offset)", "evaluation_id") == evaluations_before
    )


def test_retention_covers_the_states_of_every_stage() -> None:
    """A new stage keeps states of sessions as well."""
    assert {TRUNCATED_STAGE, *(stage.name for stage in TOPOLOGY)} == set(SESSION_STAGES)


def test_settled_alerts_are_deleted_except_those_of_open_incidents(store: Store, samples: SampleMaker) -> None:
    """The outbox must not grow forever, and a deleted alert of an open incident would be sent again."""
    (incident,) = samples.records("Incident", 1)
    (alert,) = samples.records("Alert", 1)
    with store.transaction() as transaction:
        transaction.append("incidents", [encode(msgspec.structs.replace(incident, incident_id="open", status="open"))])
    outcomes = {"old": ("gone", "delivered", OLD), "open": ("open", "delivered", OLD), "new": ("gone", "given_up", NEW)}
    alerts = [
        msgspec.structs.replace(alert, alert_id=name, subject_id=subject, status=status, settled_at=at)
        for name, (subject, status, at) in (outcomes | {"waiting": ("gone", "waiting", None)}).items()
    ]
    assert Outbox(store).put(alerts) == 4

    purge(store, POLICY, NOW)

    assert sorted(rows(store, "alerts", "alert_id")) == [("new",), ("open",), ("waiting",)]


def test_daily_sums_outlive_their_scores(store: Store) -> None:
    """They contain no texts, trends reach further back than exchanges, and a rebuild does not delete them."""
    publish(store, "exchanges", build_exchange("old", 1, OLD), build_exchange("new", 1, NEW))

    purge(store, POLICY, NOW)
    assert rows(store, "daily_scores", "day::DATE, exchanges", "day") == [(OLD.date(), 1), (NEW.date(), 1)]
    assert complete_since(store) == {"ops": cutoff(NOW, 90)}
    runner_over(store).rebuild()
    refresh_daily(store)

    assert rows(store, "daily_scores", "day::DATE, exchanges", "day") == [(OLD.date(), 1), (NEW.date(), 1)]
    publish(store, "exchanges", build_exchange("late", 1, OLD))
    refresh_daily(store)

    assert rows(store, "daily_scores", "day::DATE, exchanges", "day") == [(OLD.date(), 1), (NEW.date(), 1)]


def test_hourly_sums_outlive_their_scores_as_long_as_the_watch_needs_them(store: Store) -> None:
    """A ramp over a year is found with scores of ninety days, and older sums are deleted."""
    publish(store, "exchanges", build_exchange("old", 1, OLD), build_exchange("new", 1, NEW))
    purge(store, POLICY, NOW)
    assert rows(store, "hourly_scores", "hour::DATE, exchanges", "hour") == [(OLD.date(), 1), (NEW.date(), 1)]
    until = NEW + timedelta(days=1)
    parameters = {"projects": ["ops"], "since": OLD - timedelta(days=1), "until": until, "coarse_until": until}
    assert [row["day"] for row in query_rows(store.cursor(), "watched_hours", parameters)] == [OLD.date(), NEW.date()]
    runner_over(store).rebuild()
    refresh_daily(store)
    assert rows(store, "hourly_scores", "hour::DATE, exchanges", "hour") == [(OLD.date(), 1), (NEW.date(), 1)]

    purge(store, POLICY, OLD + timedelta(days=LOOK_BACK_DAYS))
    assert rows(store, "hourly_scores", "hour::DATE, exchanges", "hour") == [(OLD.date(), 1), (NEW.date(), 1)]
    purge(store, POLICY, OLD + timedelta(days=LOOK_BACK_DAYS + 1))

    assert rows(store, "hourly_scores", "hour::DATE, exchanges", "hour") == [(NEW.date(), 1)]
    assert rows(store, "daily_scores", "day::DATE, exchanges", "day") == [(OLD.date(), 1), (NEW.date(), 1)]


def test_sums_of_judgements_are_deleted_with_their_exchanges(store: Store) -> None:
    """They contain session names, and a late answer counts on the day of its exchange."""
    publish(store, "exchanges", build_exchange("old", 1, OLD), build_exchange("new", 1, NEW))
    with store.transaction() as transaction:
        transaction.append(
            "judgements", [encode(judgement("old", 1, judged_at=NEW)), encode(judgement("new", 1, judged_at=NEW))]
        )
    refresh_daily(store)
    assert rows(store, "session_costs", "session_id", "session_id") == [("new",), ("old",)]
    parameters = {"project": "ops", "by": "day", "from": OLD - timedelta(days=1), "to": NOW}
    assert [row["period"].date() for row in query_rows(store.cursor(), "window_costs", parameters)] == [OLD.date(), NEW.date()]

    purge(store, POLICY, NOW)

    assert rows(store, "session_costs", "session_id") == [("new",)]
    assert rows(store, "daily_exchanges", "day::DATE, exchanges") == [(NEW.date(), 1)]
    assert [row["period"].date() for row in query_rows(store.cursor(), "window_costs", parameters)] == [NEW.date()]


def test_an_interrupted_run_is_completed_by_the_next(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the last transaction was, a second run ends in the same state as one run."""
    steps = 0

    class StopError(Exception):
        """The end of a process."""

    delete_at = Transaction.delete_at

    def interrupted_delete(transaction: Transaction, name: str, positions: pl.DataFrame) -> int:
        nonlocal steps
        steps += 1
        if steps in stops:
            raise StopError
        return delete_at(transaction, name, positions)

    stops = set(range(1, 40, 2))
    publish(
        store,
        "exchanges",
        *(build_exchange("s", number, OLD if number < 6 else NEW) for number in range(1, 8)),
        build_exchange("o", 1, OLD),
    )
    with store.transaction() as transaction:
        transaction.append("judgements", [encode(reservation("s", 1)), encode(judgement("s", 1, judged_at=NEW))])
    monkeypatch.setattr(Transaction, "delete_at", interrupted_delete)
    for _ in range(20):
        with contextlib.suppress(StopError):
            purge(store, POLICY, NOW)

    assert rows(store, "scores", "exchange_id") == [("s:6",), ("s:7",)]
    assert [count(store, table) for table in ("judgements", "reservations")] == [0, 0]
    assert {key for (key,) in rows(store, "stage_state", "key")} == {"local/s"}
