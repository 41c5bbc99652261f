"""The watch over a store: what changed is found once, what did not is left in peace, whatever comes late or twice or again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from support.builders import exchange, score
from support.watch_histories import END, JUDGED, ended_run, fallen, history, put, steady

from analytics.queries import query_records, query_rows
from analytics.store.store import Store
from audit.anchors import anchor_project
from audit.drift.incident_evidence import evidence_of
from audit.policy import Policy, ProjectSettings
from schemas.records import DimensionScore, Exchange, Incident, Label, Record, Review, Score
from service.read.why import why
from streams.engine.record_intake import PublishResult
from streams.log.sink import StorePublisher
from streams.watch import measures
from streams.watch.checking import CheckResult
from streams.watch.lifecycle import DISMISSED, NEW_NORMAL, RESOLVED
from streams.watch.watching import Watch

DAY = timedelta(days=1)
HOUR = timedelta(hours=1)


@pytest.fixture
def store() -> Iterator[Store]:
    """Return an empty store."""
    with Store(None) as opened:
        yield opened


def watch_over(store: Store, at: datetime = END, policy: Policy | None = None) -> Watch:
    """Return a watch over a store, at a given time."""
    return Watch(StorePublisher(store, policy or Policy(), lambda: at))


def check_project(store: Store, at: datetime = END, policy: Policy | None = None, project: str = "ops") -> CheckResult:
    """Return the check of a project by a watch without a memory besides the store."""
    (result,) = asyncio.run(watch_over(store, at, policy).check([project]))
    return result


def test_a_check_is_recorded_with_its_time_range_and_counts(store: Store) -> None:
    """The absence of incidents is good news only if the project was checked."""
    put(store, "scores", [*history(steady, 8), *history(fallen(6), 40, project="web")])
    asyncio.run(watch_over(store).check(["ops", "web", "nobody"]))
    columns = "project, days, baseline_days, exchanges, findings > 0"
    query = f"SELECT {columns} FROM log.project_checks ORDER BY project"
    assert store.cursor().execute(query).fetchall() == [("ops", 9, 14, 90, False), ("web", 14, 14, 140, True)]
    check_project(store, END + HOUR)
    check_project(store, END - HOUR)
    check_project(store, END + 30 * DAY)
    times = "SELECT checked_at FROM log.project_checks WHERE project = 'ops'"
    assert store.cursor().execute(times).fetchall() == [((END + HOUR).replace(tzinfo=None),)]


def decide(store: Store, incident: Incident, status: str, at: datetime = END) -> Incident:
    """Decide on an incident."""
    decision_result = asyncio.run(watch_over(store, at).decide(incident.project, incident.incident_id, status, "ann"))
    assert decision_result is not None
    return decision_result


def incidents(store: Store, columns: str = "type, tier, direction, status") -> list[tuple[Any, ...]]:
    """Return the latest revisions of the incidents."""
    return store.cursor().execute(f"SELECT {columns} FROM incidents ORDER BY ALL").fetchall()


def rescored(scores: Sequence[Score], **changes: object) -> list[Score]:
    """Return the scores as their next revisions."""
    return [msgspec.structs.replace(score, revision=score.revision + 1, **changes) for score in scores]


def shifted(scores: Sequence[Score], difference: float) -> list[Score]:
    """Return the scores with another Tier 2."""
    return [
        msgspec.structs.replace(score, tier2_score=max(0.0, round((score.tier2_score or 0.0) + difference, 3)))
        for score in scores
    ]


def test_a_fall_is_one_incident_with_its_evidence(store: Store) -> None:
    """Both rules find the change, but it is reported once, with the figures of both."""
    put(store, "scores", history(fallen(6), 40))
    result = check_project(store)
    assert {finding.rule for finding in result.findings} == {"sequential", "consecutive_days"}
    (incident,) = result.incidents
    assert incident.type == "drift"
    assert incident.tier == "tier2"
    assert incident.direction == "down"
    assert incident.status == "open"
    assert incident.severity == "critical"
    assert incident.rule == "sequential"
    evidence = json.loads(incident.metadata)
    rule_evidence = evidence["rules"]["sequential"]
    assert rule_evidence["firstDay"] == "2026-10-27"
    assert rule_evidence["changeInterval"][0] <= rule_evidence["change"] <= rule_evidence["changeInterval"][1] < -0.3
    assert [day["count"] for day in rule_evidence["days"]] == [10] * 6
    assert len(evidence["exchanges"]) == 10
    for exchange_evidence in evidence["exchanges"]:
        assert exchange_evidence["score"] < 0.45
        assert exchange_evidence["scoreId"].startswith("score ops-")
    assert evidence["samplingMix"][0] == {
        "sampling_reason": "first_turns",
        "before": 350,
        "after": 60,
        "share_before": 1.0,
        "share_after": 1.0,
    }
    assert evidence["madeWith"]["judge_model"] == "claude-haiku-4-5"
    assert incident.baseline_id == evidence["baseline"]["id"]


def test_the_queries_of_the_evidence_reproduce_it(store: Store) -> None:
    """Analysts run these queries themselves."""
    dimensions = (DimensionScore(dimension="scope_compliance", score=0.5),)
    put(store, "scores", history(fallen(6), 40, tier1_flags=("rude",), tier2_dimensions=dimensions))
    evidence = json.loads(check_project(store).incidents[0].metadata)
    queries_by_name = {named_query["name"]: named_query for named_query in evidence["queries"]}
    query_names = {"daily_averages", "watched_hours", "incident_exchanges", "sampling_change", "slices"}
    assert set(queries_by_name) == {*query_names, "reason_change", "dimension_change"}
    for name, query in queries_by_name.items():
        values = {key: _moment(value) for key, value in query["parameters"].items()}
        assert query_rows(store.cursor(), name, values), name
    parameters = queries_by_name["incident_exchanges"]["parameters"]
    reproduced = query_rows(store.cursor(), "incident_exchanges", {name: _moment(value) for name, value in parameters.items()})
    score_ids = [exchange_evidence["scoreId"] for exchange_evidence in evidence["exchanges"]]
    assert score_ids == [row["score_id"] for row in reproduced]


def _moment(value: Any) -> Any:
    return datetime.fromisoformat(value) if isinstance(value, str) and value.endswith("Z") else value


@pytest.mark.parametrize("a_day", [3, 10])
def test_unchanged_scores_make_no_incident(store: Store, a_day: int) -> None:
    """A watch with false alarms gets switched off."""
    put(store, "scores", history(steady, 60, a_day=a_day))
    for back in range(20, -1, -1):
        assert check_project(store, END - back * DAY).incidents == ()


def test_two_checks_at_the_same_time_make_the_same_records(store: Store) -> None:
    """An interrupted check is repeated, and must not duplicate records."""
    put(store, "scores", history(fallen(6), 40))
    with Store(None) as other:
        put(other, "scores", history(fallen(6), 40))
        first, second = check_project(store), check_project(other)
    assert first.baseline == second.baseline
    assert first.incidents == second.incidents
    assert check_project(store).incidents == ()
    assert len(incidents(store)) == 1


def test_a_check_interrupted_after_its_baseline_is_completed(store: Store) -> None:
    """A kill between the two topics must not lose the incident."""
    put(store, "scores", history(fallen(6), 40))
    with Store(None) as other:
        put(other, "scores", history(fallen(6), 40))
        undisturbed = check_project(other)
    assert undisturbed.baseline is not None
    put(store, "baselines", [undisturbed.baseline])
    completed = check_project(store)
    assert completed.is_new_baseline is False
    assert completed.incidents == undisturbed.incidents


def test_an_ongoing_incident_adds_days_and_opens_nothing(store: Store) -> None:
    """Checked every minute, it is still one incident, which is revised once per new day."""
    put(store, "scores", history(fallen(6), 40))
    incident = check_project(store).incidents[0]
    assert check_project(store, END + timedelta(minutes=2)).incidents == ()
    put(
        store,
        "scores",
        [score for score in history(fallen(8), 42, end=END + 2 * DAY, name="-later") if score.exchange_at > END],
    )
    (later,) = check_project(store, END + 2 * DAY).incidents
    assert later.incident_id == incident.incident_id
    assert later.revision == 1
    assert later.status == "open"
    assert json.loads(later.metadata)["rules"]["sequential"]["until"] == "2026-11-03"
    assert later.detected_at == incident.detected_at
    assert later.checked_at == END + 2 * DAY


def test_changed_figures_are_written_once_per_hour(store: Store) -> None:
    """Every score changes the figures; a revision for each would bury the incident."""
    put(store, "scores", history(fallen(6), 40))
    check_project(store)
    at = END + timedelta(minutes=30)
    put(store, "scores", history(fallen(6), 0, end=at, name="-more"))
    assert check_project(store, at).incidents == ()
    assert len(check_project(store, END + HOUR).incidents) == 1


@pytest.mark.parametrize(("decision", "status"), [(NEW_NORMAL, RESOLVED), (DISMISSED, DISMISSED)])
def test_a_decided_change_that_continues_opens_nothing(store: Store, decision: str, status: str) -> None:
    """The person who dismissed it has seen it, so another alert tomorrow is useless."""
    put(store, "scores", history(fallen(16), 50, end=END + 10 * DAY))
    decide(store, check_project(store).incidents[0], decision)
    for day in range(11):
        check_project(store, END + day * DAY)
    assert incidents(store) == [("drift", "tier2", "down", status)]


def test_a_change_that_gets_worse_after_a_decision_opens_an_incident(store: Store) -> None:
    """The decision dismissed a fall to 0.6, not one to 0.2."""
    quality: Callable[[int], float] = lambda back: 0.2 if back < 6 else 0.65 if back < 36 else 0.9  # noqa: E731 - three levels
    put(store, "scores", history(quality, 76, end=END + 30 * DAY))
    (incident,) = check_project(store).incidents
    decide(store, incident, DISMISSED)
    for day in range(31):
        check_project(store, END + day * DAY)
    rows = incidents(store, "status, direction, detected_at::DATE::VARCHAR")
    assert ("dismissed", "down", "2026-11-01") in rows
    assert [row[:2] for row in rows if row[0] == "open"] == [("open", "down")]
    assert next(day for status, _, day in rows if status == "open") > "2026-11-25"


def test_the_next_check_completes_an_interrupted_decision(store: Store) -> None:
    """After a kill between the review and the revision, the person's decision still counts."""
    put(store, "scores", history(fallen(6), 40))
    check_project(store)
    with Store(None) as other:
        put(other, "scores", history(fallen(6), 40))
        expected = decide(other, check_project(other).incidents[0], NEW_NORMAL)
        frame = other.read("reviews", 0, 10)["Review"].drop("_offset")
        (review,) = (msgspec.convert(row, Review) for row in frame.to_dicts())
    put(store, "reviews", [review])
    check_project(store, END + timedelta(minutes=5))
    ((status, by, at),) = incidents(store, "status, resolved_by, resolved_at")
    assert status == expected.status
    assert by == "ann"
    assert at == END.replace(tzinfo=None)


def test_reopening_withdraws_a_decision(store: Store) -> None:
    """An open incident has no resolver."""
    put(store, "scores", history(fallen(6), 40))
    incident = check_project(store).incidents[0]
    decide(store, incident, DISMISSED)
    reopened = decide(store, incident, "open", END + HOUR)
    assert reopened.status == "open"
    assert reopened.resolved_at is None
    assert reopened.resolved_by is None
    assert reopened.revision == 2
    assert store.cursor().execute("SELECT status FROM reviews ORDER BY occurred_at").fetchall() == [("dismissed",), ("open",)]


class DelayedPublisher(StorePublisher):
    """A publisher whose records of the `delayed_topics` never reach the tables, like a sink on Kafka that is far behind."""

    delayed_topics: tuple[str, ...] = ()

    async def publish(self, topic: str, records: Sequence[Record]) -> PublishResult:
        """Store the records unless their topic is delayed."""
        if topic in self.delayed_topics:
            return PublishResult(0, 0, [])
        return await super().publish(topic, records)


def test_a_stored_decision_does_not_undo_a_later_one(store: Store) -> None:
    """A person dismisses and then re-opens an incident while the check sees only the first decision."""
    put(store, "scores", history(fallen(6), 40))
    log = DelayedPublisher(store, Policy(), lambda: END)
    watch = Watch(log)

    async def run() -> tuple[CheckResult, Incident | None]:
        (first,) = await watch.check(["ops"])
        incident_id = first.opened[0].incident_id
        log.delayed_topics = ("incidents",)
        await watch.decide("ops", incident_id, DISMISSED, "ann")
        log.delayed_topics = ("incidents", "reviews")
        await watch.decide("ops", incident_id, "open", "ann")
        (check,) = await watch.check(["ops"])
        return check, await watch.incident("ops", incident_id)

    reopened, incident = asyncio.run(run())
    assert store.cursor().execute("SELECT status FROM reviews").fetchall() == [("dismissed",)]
    assert incident is not None
    assert reopened.incidents == ()
    assert incident.status == "open"
    assert incident.revision == 2


def test_an_incident_of_another_project_is_not_changed(store: Store) -> None:
    """The id alone gives no access, whether the incident is stored or was just published."""
    put(store, "scores", history(fallen(6), 40))
    log = DelayedPublisher(store, Policy(), lambda: END)
    log.delayed_topics = ("incidents",)
    watch = Watch(log)

    async def run() -> list[Incident | None]:
        (check,) = await watch.check(["ops"])
        published = check.opened[0].incident_id
        log.delayed_topics = ()
        await log.publish("incidents", [msgspec.structs.replace(check.opened[0], incident_id="landed")])
        return [
            await watch.incident(project, incident_id) for project in ("ops", "other") for incident_id in (published, "landed")
        ]

    published_in_ops, stored_in_ops, *in_other_project = asyncio.run(run())
    assert published_in_ops is not None
    assert stored_in_ops is not None
    assert in_other_project == [None, None]


def test_a_baseline_is_refreshed_once_a_day(store: Store) -> None:
    """More often is unnecessary, and a project without a baseline gets one."""
    put(store, "scores", history(steady, 40))
    first = check_project(store)
    assert first.is_new_baseline
    assert not check_project(store, END + 23 * HOUR).is_new_baseline
    assert check_project(store, END + 25 * HOUR).is_new_baseline
    (baseline,) = query_rows(store.cursor(), "baseline", {"project": "ops", "as_of": END, "days": 14})
    assert first.baseline is not None
    assert (baseline["tier2_mean"], baseline["tier2_count"], baseline["exchange_count"]) == pytest.approx(
        (first.baseline.tier2.mean, first.baseline.tier2.count, first.baseline.exchange_count)
    )
    assert baseline["tier2_stddev"] == pytest.approx(first.baseline.tier2.stddev)


def test_an_open_incident_keeps_its_baseline(store: Store) -> None:
    """A baseline that includes the changed days would call them normal, and the drift would end by itself."""
    put(store, "scores", history(fallen(26), 70, end=END + 20 * DAY))
    before = check_project(store).baseline
    assert before is not None
    for day in range(1, 21):
        result = check_project(store, END + day * DAY)
        assert not result.is_new_baseline
        assert result.baseline == before
    decide(store, only(store), DISMISSED, END + 20 * DAY)
    assert check_project(store, END + 20 * DAY + 2 * HOUR).is_new_baseline


def only(store: Store) -> Incident:
    """Return the only incident of the project."""
    (incident,) = query_records(store.cursor(), "watched_incidents", Incident, {"projects": ["ops"]})
    return incident


def test_late_scores_count_on_their_own_days_and_open_nothing(store: Store) -> None:
    """A gateway that was offline for a week delivers everything at once: these scores are not of today."""
    scores = history(steady, 40)
    late = [score for score in scores if 10 <= (END - score.exchange_at).days < 20]
    put(store, "scores", [score for score in scores if score not in late])
    assert check_project(store).incidents == ()
    put(store, "scores", [msgspec.structs.replace(score, scored_at=END) for score in late])
    assert check_project(store, END + timedelta(minutes=2)).incidents == ()


def test_a_drift_in_late_scores_is_found_on_its_days(store: Store) -> None:
    """Late scores still count."""
    scores = history(fallen(6), 40)
    late = [score for score in scores if (END - score.exchange_at).days < 6]
    put(store, "scores", [score for score in scores if score not in late])
    assert check_project(store).incidents == ()
    put(store, "scores", [msgspec.structs.replace(score, scored_at=END + DAY) for score in late])
    (incident,) = check_project(store, END + timedelta(minutes=2)).incidents
    assert json.loads(incident.metadata)["rules"]["sequential"]["firstDay"] == "2026-10-27"


@pytest.mark.parametrize(
    "by",
    [
        {"judge_model": "claude-sonnet-4-5"},
        {"methodology": "tilt", "methodology_digest": "1" * 16},
        {"rule_version": "eval-2"},
        {"rule_version": "eval-3+combined"},
        {"simulated": True},
        {"policy_digest": "1" * 16},
    ],
    ids=lambda by: next(iter(by)),
)
def test_rejudged_history_is_not_a_drift(store: Store, by: dict[str, object]) -> None:
    """Every score fell by 0.3 overnight because the judge changed, not the agents."""
    scores = history(steady, 40)
    put(store, "scores", scores)
    first = check_project(store)
    put(store, "scores", shifted(rescored(scores, **by), -0.3))
    second_check = check_project(store, END + timedelta(minutes=2))
    assert second_check.incidents == ()
    assert second_check.findings == ()
    assert second_check.is_new_baseline
    assert first.baseline is not None
    assert second_check.baseline is not None
    assert first.baseline.yardstick != second_check.baseline.yardstick
    for day in range(1, 4):
        assert check_project(store, END + day * DAY).findings == ()


def test_rules_that_differ_only_in_sampling_are_compared(store: Store) -> None:
    """An upgrade from eval-3 to eval-4 changes which turns are judged: the watch and its baseline continue."""
    before = [score for score in history(fallen(6), 40, rule_version="eval-3") if score.exchange_at < END - 8 * DAY]
    after = [score for score in history(fallen(6), 40, rule_version="eval-4") if score.exchange_at >= END - 8 * DAY]
    put(store, "scores", before)
    first = check_project(store, END - 8 * DAY)
    put(store, "scores", after)
    result = check_project(store)
    assert json.loads(result.incidents[0].metadata)["rules"]["sequential"]["firstDay"] == "2026-10-27"
    assert first.baseline is not None
    assert result.baseline is not None
    assert first.baseline.yardstick == result.baseline.yardstick


def test_days_of_another_judge_are_not_compared(store: Store) -> None:
    """After a change to a stricter judge, no fall is reported until there are comparable days."""
    put(store, "scores", [score for score in history(steady, 40) if score.exchange_at < END - 6 * DAY])
    stricter = [
        score for score in history(steady, 40, judge_model="claude-opus-4-5", name="-new") if score.exchange_at >= END - 6 * DAY
    ]
    put(store, "scores", shifted(stricter, -0.4))
    result = check_project(store)
    assert result.findings == ()
    assert _judge(store) == "claude-opus-4-5"
    assert result.baseline is not None
    assert result.baseline.tier2.count == 60


def _judge(store: Store) -> str:
    row = store.cursor().execute("SELECT arg_max(judge_model, exchange_at) FROM scores").fetchone()
    assert row is not None
    return str(row[0])


def test_a_policy_change_on_the_same_day_is_mentioned(store: Store) -> None:
    """Other gates select other exchanges, so the agent need not have changed."""
    before = [score for score in history(fallen(6), 40) if score.exchange_at < END - 6 * DAY]
    after = [score for score in history(fallen(6), 40, policy_digest="1" * 16) if score.exchange_at >= END - 6 * DAY]
    put(store, "scores", [*before, *after])
    (incident,) = check_project(store).incidents
    assert json.loads(incident.metadata)["policies"] != {"before": ["0" * 16], "after": ["0" * 16, "1" * 16]}
    assert "The policy differs before and after" in incident.description


def test_an_increase_of_anomalies_is_a_spike(store: Store) -> None:
    """A tier's mean can stay constant while a few exchanges go badly wrong."""
    put(store, "scores", history(steady, 40))
    put(store, "scores", history(steady, 2, a_day=8, name="-odd", anomaly=True, anomaly_reasons=("odd",)))
    spikes = [incident for incident in check_project(store).incidents if incident.type == "anomaly_spike"]
    assert [(incident.tier, incident.direction, incident.status, incident.rule) for incident in spikes] == [
        (None, "up", "open", "rate_ratio")
    ]
    rule_evidence = json.loads(spikes[0].metadata)["rules"]["rate_ratio"]
    assert rule_evidence["anomalies"] == 24
    assert rule_evidence["exchanges"] == 54
    assert {listed["reason"] for listed in json.loads(spikes[0].metadata)["exchanges"]} == {"odd"}


@pytest.mark.parametrize("since", [1, 5, 12])
def test_the_rate_before_a_spike_stays_correct_on_each_of_its_days(store: Store, since: int) -> None:
    """A baseline that includes the spike would call it normal, and the incident would report no change."""
    put(store, "scores", history(steady, 40))
    put(store, "scores", history(steady, since - 1, a_day=10, name="-odd", anomaly=True, anomaly_reasons=("odd",)))
    (spike,) = [finding for finding in check_project(store).findings if finding.key.type == "anomaly_spike"]
    first = (END - (since - 1) * DAY).date()
    assert spike.since == first
    assert spike.numbers.baseline_rate == 0.0
    assert spike.numbers.baseline_from == (END - 40 * DAY).date()
    assert spike.numbers.baseline_until == first - DAY
    assert spike.before[1] == spike.after[0]
    assert f"From {(END - 40 * DAY).date()} to the day before, 0 of {10 * (41 - since)} had one" in spike.description


def test_an_unaudited_project_is_not_watched(store: Store) -> None:
    """The audit of the project is switched off."""
    policy = Policy(projects={"ops": ProjectSettings(enabled=False)})
    put(store, "scores", history(fallen(6), 40))
    assert asyncio.run(watch_over(store, END, policy).check(["ops"])) == []
    assert incidents(store) == []


def test_rules_disabled_by_the_policy_find_nothing(store: Store) -> None:
    """Some users want one rule, and some none."""
    put(store, "scores", history(fallen(6), 40))
    none = Policy(defaults=ProjectSettings(incident_rules=()))
    policy = Policy(defaults=ProjectSettings(incident_rules=("consecutive_days",)))
    assert check_project(store, policy=none).findings == ()
    assert {finding.rule for finding in check_project(store, policy=policy).findings} == {"consecutive_days"}


def test_projects_are_measured_separately(store: Store) -> None:
    """The fall of one agent says nothing about another."""
    put(store, "scores", history(fallen(6), 40))
    put(store, "scores", history(steady, 40, project="web", seed=8))
    checks = asyncio.run(watch_over(store).check(["ops", "web", "none"]))
    assert {check_result.project: len(check_result.incidents) for check_result in checks} == {"ops": 1, "web": 0, "none": 0}
    assert incidents(store, "project") == [("ops",)]


def test_a_change_of_the_sampling_mix_is_not_a_drift(store: Store) -> None:
    """Disagreements score lower, and more of them are judged now; the agents are unchanged."""
    chatty = history(steady, 40, a_day=6, sampling_reason="routine_sample", sampling_probability=1 / 3)
    terse = history(lambda _: 0.6, 40, a_day=2, name="-terse", sampling_reason="disagreement")
    put(store, "scores", [*chatty, *terse])
    assert [finding for finding in check_project(store).findings if finding.rule == "sequential"] == []


def test_a_second_fall_during_an_open_incident_is_its_own_incident(store: Store) -> None:
    """Merged into the first, it would have neither a first day nor an alarm, and the first would show a wrong level."""
    levels = {0: 0.5, 1: 0.7, 2: 0.85}
    put(store, "scores", history(lambda back: levels[(back >= 6) + (back >= 36)], 70))
    (first,) = check_project(store, END - 30 * DAY).incidents
    for back in range(24, 6, -6):
        assert not check_project(store, END - back * DAY).opened
    opened = [incident for back in (4, 2, 0) for incident in check_project(store, END - back * DAY).opened]

    assert [incident.type for incident in opened] == ["drift"]
    assert "fell further" in opened[0].title
    assert abs((opened[0].first_day - (END - 5 * DAY)).days) <= 1
    latest = {
        incident.incident_id: incident
        for incident in query_records(store.cursor(), "watched_incidents", Incident, {"projects": ["ops"]})
    }
    leading = {
        name: evidence_of(latest[incident.incident_id]).moved[0] for name, incident in (("first", first), ("second", opened[0]))
    }
    assert leading["first"].level.after == pytest.approx(0.7, abs=0.03)
    assert (leading["second"].level.before, leading["second"].level.after) == pytest.approx((0.7, 0.5), abs=0.04)
    assert {incident.status for incident in latest.values()} == {"open"}


@pytest.mark.parametrize("later", [10, 20])
def test_a_second_fall_within_two_weeks_has_its_own_first_day(store: Store, later: int) -> None:
    """A week of the first fall is enough to compare the second one with."""
    levels = {0: 0.5, 1: 0.7, 2: 0.85}
    put(store, "scores", history(lambda back: levels[(back >= 4) + (back >= 4 + later)], 70, a_day=20))
    opened = [
        incident for back in (*range(later, 4, -3), 3, 2, 1, 0) for incident in check_project(store, END - back * DAY).opened
    ]

    first_fall, second_fall = opened
    assert first_fall.first_day.date() == END.date() - (3 + later) * DAY
    assert second_fall.first_day.date() == END.date() - 3 * DAY
    assert "fell further" in second_fall.title


def test_history_imported_beside_live_data_is_no_fall_of_today(store: Store) -> None:
    """A month of another fleet at a higher level must not alert anybody today."""
    live = history(steady, 30, name="live", a_day=20)
    older = history(lambda _: 0.97, 40, end=END - 12 * DAY, name="old", a_day=20)
    for scores, delay in ((live, timedelta(minutes=1)), (older, 60 * DAY)):
        put(store, "exchanges", [ingested_exchange(score, score.exchange_at + delay) for score in scores])
        put(store, "scores", scores)
    (check,) = check_project(store).incidents

    assert check.cause == "history"
    assert check.confidence == "suspected"
    assert "history was added (" in check.title
    assert check_project(store, END + timedelta(hours=2)).incidents == ()


def test_history_that_ends_where_live_data_begins_is_no_fall(store: Store) -> None:
    """If the previous month comes from another source, the gap is dated to the first live day and alerts nobody."""
    live = history(steady, 20, name="live", a_day=20)
    older = history(lambda _: 0.97, 30, end=END - 21 * DAY, name="old", a_day=20)
    for scores, delay in ((live, timedelta(minutes=1)), (older, 60 * DAY)):
        put(store, "exchanges", [ingested_exchange(score, score.exchange_at + delay) for score in scores])
        put(store, "scores", scores)
    (check,) = check_project(store).incidents

    assert check.cause == "history"
    assert check.confidence == "suspected"
    assert "gap between two sources" in check.description


@pytest.mark.parametrize("arrives", ["all live", "all imported", "imported up to yesterday"])
def test_a_fall_in_records_of_one_source_is_a_fall(store: Store, arrives: str) -> None:
    """If all records came the same way, or none came live before the fall, the import does not explain it."""
    scores = history(fallen(6), 40, a_day=20)
    exchanges = []
    for scored in scores:
        is_imported = arrives == "all imported" or (arrives == "imported up to yesterday" and scored.exchange_at < END - DAY)
        delay = 50 * DAY if is_imported else HOUR
        exchanges.append(ingested_exchange(scored, scored.exchange_at + delay))
    put(store, "exchanges", exchanges)
    put(store, "scores", scores)
    (check,) = check_project(store).incidents

    assert check.confidence == "confirmed"
    assert "history" not in check.title


def ingested_exchange(score: Score, at: datetime) -> Exchange:
    """Return the exchange of a score, ingested at a given time."""
    return exchange(
        score.session_id, 1, project="ops", exchange_id=score.exchange_id, occurred_at=score.exchange_at, ingested_at=at
    )


def load_blind_spots(store: Store, at: datetime = END) -> list[tuple[str, str, int]]:
    """Return the blind spots of a check: reason, subject and count."""
    project_check = check_project(store, at).project_check
    assert project_check is not None
    return [(spot.reason, spot.subject, spot.count) for spot in project_check.blind_spots]


def test_a_fully_compared_project_has_no_blind_spot(store: Store) -> None:
    """Nobody reads a notice that is always there."""
    put(store, "scores", history(steady, 40, agent="scout"))
    assert load_blind_spots(store) == []


def test_a_new_judge_makes_the_judged_tiers_a_blind_spot(store: Store) -> None:
    """The absence of incidents for two weeks after a change of the judge is no good news."""
    put(store, "scores", history(steady, 40, end=END - 4 * DAY))
    put(store, "scores", history(steady, 3, name="new", judge_model="claude-opus-5"))
    assert load_blind_spots(store) == [("new_judge", "claude-opus-5", 4)]


def test_two_judges_side_by_side_are_both_compared(store: Store) -> None:
    """Each has a past of its own, so nothing is left out."""
    put(store, "scores", history(steady, 40, a_day=6))
    put(store, "scores", history(steady, 40, a_day=4, name="other", judge_model=NEW_JUDGE))
    assert load_blind_spots(store) == []


def test_scores_of_a_second_judge_with_too_few_common_days_are_counted(store: Store) -> None:
    """Two days do not tell how far apart the judges are, so the second one's scores are not compared yet."""
    put(store, "scores", history(steady, 40, a_day=6))
    put(store, "scores", history(steady, 1, a_day=4, name="other", judge_model=NEW_JUDGE))
    assert load_blind_spots(store) == [("other_judges", NEW_JUDGE, 8)]


NEW_JUDGE = "claude-opus-5"


def judged_anchors(since: int, kinder: float = 0.1, spread: float = 0.0) -> list[Score]:
    """Return daily rounds of twenty anchors, which the new, kinder judge judges for so many days; on some it is kinder than on others."""
    rounds = [(back, NEW_JUDGE if back < since else "claude-haiku-4-5") for back in range(since + 14, -1, -1)]
    return [
        score(
            f"round {back}", number + 1, score_id=f"anchor {number}@{back}", exchange_id=f"anchor {number}@{back}", connection="anchors",
            project=anchor_project("ops"), exchange_at=END - back * DAY - HOUR, scored_at=END - back * DAY - HOUR,
            **(JUDGED | {"judge_model": judge, "tier2_score": round(0.3 + number / 50 + (judge == NEW_JUDGE) * (kinder + spread * (-1) ** number), 3)}),
        )
        for back, judge in rounds
        for number in range(20)
    ]  # fmt: skip


def replaced_judge(store: Store, since: int, quality: Callable[[int], float], kinder: float = 0.1) -> None:
    """Store scores of an agent whose judge was replaced by a kinder one so many days before the end."""
    scores = history(lambda back: quality(back) + (kinder if back < since else 0), 40)
    replaced_at = (END - since * DAY).date()
    put(
        store,
        "scores",
        [
            msgspec.structs.replace(score, judge_model=NEW_JUDGE) if score.exchange_at.date() > replaced_at else score
            for score in scores
        ],
    )


@pytest.mark.parametrize("fell", [8, 4], ids=["the same day", "four days later"])
@pytest.mark.parametrize("kinder", [0.15, -0.15])
def test_a_series_goes_on_over_a_change_of_the_judge(store: Store, fell: int, kinder: float) -> None:
    """An agent falls when its judge is replaced, or soon after: the anchors tell both apart, and the judge is not blamed."""
    replaced_judge(store, 8, fallen(fell, 0.6, 0.8), kinder)
    put(store, "scores", judged_anchors(8, kinder))
    check = check_project(store)
    (incident,) = check.incidents
    assert (incident.direction, incident.confidence, incident.cause) == ("down", "confirmed", "agent")
    change = evidence_of(incident).moved[0].observation
    assert change.change == pytest.approx(-0.2, abs=0.03)
    assert abs((incident.first_day or END) - (END - fell * DAY)) <= 2 * DAY
    assert "claude-haiku-4-5 were moved by" in (change.description or "")
    assert check.project_check is not None
    assert check.project_check.blind_spots == ()


def test_a_kinder_judge_is_no_change_of_the_agent(store: Store) -> None:
    """With anchors judged by both, the series goes on as if the judge were the same."""
    replaced_judge(store, 10, steady)
    put(store, "scores", judged_anchors(10))
    assert check_project(store).incidents == ()
    assert load_blind_spots(store) == []


def test_three_days_with_both_judges_connect_them_without_anchors(store: Store) -> None:
    """They are days of the project's own traffic, so no blind spot is left, and a kinder judge is no change."""
    put(store, "scores", history(steady, 40, end=END - 8 * DAY))
    put(store, "scores", history(lambda _: 0.75, 10, name="new", judge_model=NEW_JUDGE))
    assert check_project(store).incidents == ()
    assert load_blind_spots(store) == []


@pytest.mark.parametrize(("spread", "found"), [(0.0, 1), (0.3, 0)], ids=["agree", "disagree"])
def test_a_change_within_the_uncertainty_of_the_bridge_is_not_believed(store: Store, spread: float, found: int) -> None:
    """If anchors disagree about how far apart the judges are, a small fall may be the judge's: it must hold at both ends."""
    replaced_judge(store, 10, fallen(10, 0.73, 0.8))
    put(store, "scores", judged_anchors(10, spread=spread))
    assert len(check_project(store).incidents) == found
    assert load_blind_spots(store) == []


def test_monthly_batches_are_not_compared_and_are_a_blind_spot(store: Store) -> None:
    """A change needs six earlier days with data, however long the calendar is."""
    for back in (0, 28, 56):
        put(store, "scores", history(steady, 0, a_day=50, end=END - back * DAY, name=f"batch{back}"))
    assert load_blind_spots(store) == [("few_days", "", 3)]


def test_an_agent_that_stopped_is_named(store: Store) -> None:
    """Such an agent has no scores that could fall."""
    put(store, "scores", history(steady, 30, agent="busy"))
    put(store, "scores", history(steady, 20, a_day=3, end=END - 5 * DAY, name="gone", agent="gone"))
    assert load_blind_spots(store) == [("agent_stopped", "gone", 12)]


def test_agents_beyond_the_limit_are_counted_and_named(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are compared only together, where the failures of one of them count little."""
    monkeypatch.setattr(measures, "MAX_AGENTS", 20)
    runs = [
        ended_run(f"r{agent}-{day}-{number}", END - day * DAY, bad=False, agent=f"agent{agent:02}", project="ops")
        for agent in range(22)
        for day in range(3)
        for number in range(1 + (agent < 20))
    ]
    put(store, "diagnoses", runs)
    assert load_blind_spots(store) == [("agents_beyond_limit", "agent20, agent21", 2)]


def test_a_changed_mix_is_a_notice_and_no_incident(store: Store) -> None:
    """Traffic that moves to the weaker agent is not a fault of either: a rollback would not help."""
    for agent, level, shares in (("billing", 0.9, (8, 3)), ("checkout", 0.7, (2, 7))):
        for part, count in enumerate(shares):
            days, end = (20, END - 5 * DAY) if part == 0 else (4, END)
            put(
                store,
                "scores",
                history(lambda _, level=level: level, days, a_day=count, end=end, name=f"{agent}{part}", agent=agent),
            )
    check = check_project(store)

    assert check.incidents == ()
    assert check.project_check is not None
    notices = {notice.subject: notice for notice in check.project_check.notices}
    assert notices["checkout"].reason == "mix_changed"
    assert notices["checkout"].before == pytest.approx(0.2, abs=0.05)
    assert notices["checkout"].after == pytest.approx(0.7, abs=0.05)
    assert notices["checkout"].count == 0


def test_the_agent_that_fell_leads_and_the_others_are_as_before(store: Store) -> None:
    """A mean over all agents hides which one to look at, and an agent with little traffic does not move it."""
    for agent, level_of in (("billing", lambda _: 0.9), ("checkout", lambda _: 0.8), ("scout", fallen(4))):
        put(store, "scores", history(level_of, 30, a_day=6, name=agent, agent=agent))
    (incident,) = [incident for incident in check_project(store).incidents if incident.tier == "tier2"]

    assert incident.agent == "scout"
    assert incident.title.startswith("scout: answer quality halved (")
    assert "the other 2 agents as before" in incident.title
    exchanges = json.loads(incident.metadata)["exchanges"]
    assert {exchange["agent"] for exchange in exchanges} == {"scout"}


def test_a_new_version_beside_the_old_one_is_compared_on_the_same_days(store: Store) -> None:
    """A canary has no past, and the mean of its agent hardly moves."""
    old, new = (Label(name="agent_version", value=value) for value in ("6", "7"))
    put(store, "scores", history(lambda _: 0.9, 30, a_day=20, name="old", agent="scout", labels=(old,)))
    put(store, "scores", history(lambda _: 0.4, 4, a_day=2, name="new", agent="scout", labels=(new,)))
    incidents = [
        incident for incident in check_project(store).incidents if incident.rule == "versions" and incident.tier == "tier2"
    ]

    (incident,) = incidents
    assert incident.title.startswith("scout: answer quality is lower with version 7 than with the others (0.4")
    assert all(exchange["sessionId"].startswith("opsnew") for exchange in json.loads(incident.metadata)["exchanges"])
    explanation = why(incident)
    assert explanation.summary.startswith("agent_version 7 is at ")
    assert [action.title for action in explanation.actions if action.id == "roll_back"] == ["Roll back agent_version 7"]


def test_a_wider_spread_is_its_own_kind_of_finding(store: Store) -> None:
    """The mean is constant, but some answers are far better and others far worse."""
    put(store, "scores", history(lambda _: 0.6, 60, a_day=12, seed=3))
    for level in (0.3, 0.9):
        put(store, "scores", history(lambda _, level=level: level, 4, a_day=12, name=f"-{level}"))
    result = check_project(store)
    (wider,) = [finding for finding in result.findings if finding.key.tier == "tier2"]
    assert wider.kind == "spread"
    assert wider.key.direction == "up"
    assert wider.rule == "sequential"
    assert wider.since == (END - 4 * DAY).date()
    assert wider.series.is_worse
    assert wider.interval is not None
    assert wider.interval[0] <= wider.since <= wider.interval[1] <= wider.interval[0] + 3 * DAY
    (spread_incident,) = [incident for incident in result.incidents if incident.tier == "tier2"]
    assert "spread of answer quality grew (" in spread_incident.title
    assert "answer quality has not changed" in spread_incident.description
    listed_scores = [listed["score"] for listed in json.loads(spread_incident.metadata)["exchanges"]]
    assert any(score > 0.6 for score in listed_scores)
    assert any(score <= 0.6 for score in listed_scores)


def test_recent_hours_wait_for_pending_scores(store: Store) -> None:
    """If worse answers take longer to judge, the last hours look better than they are."""
    at = END - timedelta(hours=5)
    put(store, "scores", history(steady, 40))
    better = history(lambda _: 1.0, 0, a_day=40, end=END - timedelta(hours=1), name="-soon", tier2_score=1.0)
    put(store, "scores", [score for score in better if score.exchange_at > at])
    assert [finding.key.direction for finding in check_project(store).findings if finding.key.tier == "tier2"] == ["up"]
    put(store, "exchanges", [exchange("slow", 1, project="ops", occurred_at=at, ingested_at=at)])
    assert [
        finding for finding in check_project(store, END + timedelta(minutes=1)).findings if finding.key.tier == "tier2"
    ] == []
    much_later = END + timedelta(hours=20)
    assert [finding.key.direction for finding in check_project(store, much_later).findings if finding.key.tier == "tier2"] == [
        "up"
    ]
