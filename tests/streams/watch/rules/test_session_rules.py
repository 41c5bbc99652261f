"""Drift of sessions that were judged as a whole: a drop of one dimension is found and named; what cannot be compared is not compared."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta

import msgspec
import pytest
from support.watch_histories import END, ended_run, put

from analytics.queries import query_records, query_rows
from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from audit.drift.incident_evidence import evidence_of
from audit.evaluation.cases import WHOLE_SESSION
from audit.evaluation.dimensions import DIMENSIONS
from audit.policy import Policy, ProjectSettings
from schemas.records import DimensionResolution, Evaluation, Incident
from streams.log.sink import StorePublisher
from streams.watch.checking import CheckResult
from streams.watch.lifecycle import OPEN, RECOVERED, RESOLVED
from streams.watch.measures import measure_sessions
from streams.watch.watching import Watch

DAY = timedelta(days=1)
HISTORY_DAYS = 60


@pytest.fixture
def store() -> Iterator[Store]:
    """Return an empty store."""
    with Store(None) as opened:
        yield opened


def judged(name: str, back: float, scores: dict[str, float], **fields: object) -> Evaluation:
    """Return the judgement of a session that ended a number of days ago; scores of dimensions, and `overall`."""
    at = END - back * DAY
    values: dict[str, object] = {
        "evaluation_id": f"e-{name}",
        "revision": 0,
        "request_id": f"r-{name}",
        "connection": "local",
        "project": "ops",
        "session_id": name,
        "case_id": WHOLE_SESSION,
        "fingerprint": "f",
        "status": "completed",
        "final_score": scores["overall"],
        "dimensions": tuple(
            DimensionResolution(dimension=dimension, policy="judge_only", source="judge", final=scores[dimension])
            for dimension in DIMENSIONS
        ),
        "configured_repetitions": 1,
        "successful_iterations": 1,
        "aggregation_method": "median",
        "result": "{}",
        "evaluated_at": at + timedelta(minutes=2),
        "run_at": at,
        "judge_model": "claude-haiku-4-5",
        "yardstick": "y",
        "sampling_probability": 0.1,
    }
    return Evaluation(**(values | fields))  # type: ignore[arg-type]


def history(drop: Callable[[float, str], float], *, a_day: int = 4, seed: int = 7, **fields: object) -> list[Evaluation]:
    """Return judged sessions of two months; `drop` takes the days ago and the name of a score."""
    numbers = random.Random(seed)
    records: list[Evaluation] = []
    for day in range(HISTORY_DAYS, 0, -1):
        for number in range(a_day):
            back = day - (number + 0.5) / a_day
            scores = {
                name: min(10.0, max(0.0, numbers.gauss(7.5, 0.8) - drop(back, name))) for name in ("overall", *DIMENSIONS)
            }
            records.append(judged(f"s{day}-{number}", back, scores, **fields))
    return records


def check_project(store: Store, policy: Policy | None = None, back: int = 0) -> CheckResult:
    """Return the check of the project a number of days ago."""
    watch = Watch(StorePublisher(store, policy or Policy(), lambda: END - back * DAY))
    (result,) = asyncio.run(watch.check(["ops"]))
    return result


def fill(store: Store, records: Sequence[Evaluation]) -> None:
    """Store judgements, and the runs that they judge."""
    put(store, "evaluations", records)
    runs = [ended_run(record.session_id, record.run_at or END, project="ops") for record in records]
    put(store, "diagnoses", runs)
    refresh_daily(store)


def test_a_drop_of_one_dimension_is_found_and_named(store: Store) -> None:
    """An agent that became wasteful does its task as before: only one of seven series changes, and the incident must name it."""
    fill(store, history(lambda back, name: 3.0 if name == "efficiency" and back < 8 else 0.0))
    (incident,) = check_project(store).incidents
    assert incident.rule == "sessions"
    assert incident.tier == "session:efficiency"
    assert incident.direction == "down"
    assert incident.title.startswith("ops: session judge: efficiency fell (")
    evidence = evidence_of(incident)
    assert [changed.series.name for changed in evidence.moved] == ["Session judge: efficiency"]
    assert incident.first_day is not None
    assert abs((incident.first_day - (END - 8 * DAY)).days) <= 1
    assert evidence.cause.reason == "not_anchored"
    assert incident.cause is None


def test_the_sessions_that_show_the_change_are_evidence(store: Store) -> None:
    """A reader of the incident opens the worst sessions first."""
    fill(store, history(lambda back, name: 4.0 if name in ("task", "overall") and back < 8 else 0.0))
    incident = check_project(store).opened[0]
    runs = evidence_of(incident).runs
    assert runs
    assert all(run.value is not None and run.value < 7 for run in runs)
    effects = [run.moved for run in runs]
    assert effects == sorted(effects, key=lambda effect: -(effect or 0.0))


def test_steady_sessions_raise_no_alarm(store: Store) -> None:
    """Seven series are examined, so the evidence for an alarm is seven times as high."""
    fill(store, history(lambda *_: 0.0))
    assert check_project(store).findings == ()


def test_scores_by_another_yardstick_or_judge_are_not_compared(store: Store) -> None:
    """A new judge may be stricter; its first weeks must not look like a fall."""
    old = history(lambda *_: 0.0)
    recent = [record for record in old if record.run_at is not None and record.run_at >= END - 8 * DAY]
    stricter = history(lambda *_: 3.0, yardstick="other", judge_model="claude-opus-5")[-len(recent) :]
    fill(store, [*old[: -len(recent)], *stricter])
    assert check_project(store).findings == ()


def test_scores_by_another_yardstick_are_no_recovery(store: Store) -> None:
    """The same model with new instructions is another measure: higher scores by it do not end the incident."""
    fell = history(lambda back, name: 4.0 if name == "task" and 14 <= back < 22 else 0.0)
    since = END - 14 * DAY
    fill(store, [msgspec.structs.replace(record, yardstick="other") if record.run_at >= since else record for record in fell])
    check_project(store, back=15)
    check_project(store, back=8)
    (incident,) = query_records(store.cursor(), "watched_incidents", Incident, {"projects": ["ops"]})
    assert incident.status == OPEN


def test_sessions_count_by_their_sampling_probability(store: Store) -> None:
    """After a change of the sample, each session stands for another number of sessions; the mean must be that of all."""
    certain = judged("a", 1.2, dict.fromkeys(("overall", *DIMENSIONS), 2.0), sampling_probability=1.0)
    sampled = judged("b", 1.1, dict.fromkeys(("overall", *DIMENSIONS), 8.0), sampling_probability=0.25)
    fill(store, [certain, sampled])
    with contextlib.closing(store.cursor()) as cursor:
        measured, _ = measure_sessions(cursor, ["ops"], (END - 9 * DAY).date(), END)
        values = {"project": "ops", "series": "task", "as_of": END, "days": 9}
        (row,) = query_rows(cursor, "session_score_days", values)
    ((mean, count),) = measured["ops"].days("session:task").values()
    assert mean == row["mean"] == pytest.approx((1 * 2.0 + 4 * 8.0) / 5)
    assert count == row["sessions"] == len([certain, sampled])


def test_a_policy_without_the_rule_opens_nothing_and_a_recovery_ends_the_incident(store: Store) -> None:
    """The rule is named in the policy like the others, and its incidents end like theirs."""
    fill(store, history(lambda back, name: 4.0 if name == "task" and 14 <= back < 22 else 0.0))
    without = Policy(defaults=ProjectSettings(incident_rules=("sequential", "runs")))
    assert check_project(store, without, back=15).findings == ()
    check_project(store, back=15)
    check_project(store, back=8)
    (incident,) = query_records(store.cursor(), "watched_incidents", Incident, {"projects": ["ops"]})
    assert (incident.status, incident.resolution) == (RESOLVED, RECOVERED)
