"""The watch over a store: what changed is found once, what did not is left in peace, whatever comes late or twice or again."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest
from support.builders import exchange
from support.watch_histories import END, ended_run, fallen, history, put, steady

from analytics.queries import query_records, query_rows
from analytics.store.store import Store
from audit.drift.incident_evidence import evidence_of
from audit.policy import Policy, ProjectSettings
from schemas.records import DimensionScore, Exchange, Incident, Record, Review, Score
from service.read.why import why
from streams.engine.record_intake import PublishResult
from streams.log.sink import StorePublisher
from streams.watch.checking import Checked
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
    """A watch over a store, at a moment."""
    return Watch(StorePublisher(store, policy or Policy(), lambda: at))


def checked(store: Store, at: datetime = END, policy: Policy | None = None, project: str = "ops") -> Checked:
    """The check of a project by a watch that knows nothing but the store."""
    (one,) = asyncio.run(watch_over(store, at, policy).check([project]))
    return one


def test_that_a_project_was_checked_is_kept(store: Store) -> None:
    """No incident is good news only where somebody looked: as of when, how far back, and at how much."""
    put(store, "scores", [*history(steady, 8), *history(fallen(6), 40, project="web")])
    asyncio.run(watch_over(store).check(["ops", "web", "nobody"]))
    columns = "project, days, baseline_days, exchanges, findings > 0"
    kept = f"SELECT {columns} FROM log.project_checks ORDER BY project"
    assert store.cursor().execute(kept).fetchall() == [("ops", 9, 14, 90, False), ("web", 14, 14, 140, True)]
    checked(store, END + HOUR)
    checked(store, END - HOUR)
    checked(store, END + 30 * DAY)
    times = "SELECT checked_at FROM log.project_checks WHERE project = 'ops'"
    assert store.cursor().execute(times).fetchall() == [((END + HOUR).replace(tzinfo=None),)]


def decide(store: Store, incident: Incident, status: str, at: datetime = END) -> Incident:
    """A decision on an incident."""
    made = asyncio.run(watch_over(store, at).decide(incident.project, incident.incident_id, status, "ann"))
    assert made is not None
    return made


def incidents(store: Store, columns: str = "type, tier, direction, status") -> list[tuple[Any, ...]]:
    """The incidents in their latest revisions."""
    return store.cursor().execute(f"SELECT {columns} FROM incidents ORDER BY ALL").fetchall()


def rescored(scores: Sequence[Score], **changes: object) -> list[Score]:
    """The scores once more, as their next revisions."""
    return [msgspec.structs.replace(one, revision=one.revision + 1, **changes) for one in scores]


def shifted(scores: Sequence[Score], by: float) -> list[Score]:
    """The scores with another Tier 2."""
    return [msgspec.structs.replace(one, tier2_score=max(0.0, round((one.tier2_score or 0.0) + by, 3))) for one in scores]


def test_a_fall_is_one_incident_with_its_evidence(store: Store) -> None:
    """Both rules see it; a person is told once, with the numbers, and finds them again."""
    put(store, "scores", history(fallen(6), 40))
    found = checked(store)
    assert {one.rule for one in found.findings} == {"sequential", "consecutive_days"}
    (made,) = found.incidents
    assert made.type == "drift"
    assert made.tier == "tier2"
    assert made.direction == "down"
    assert made.status == "open"
    assert made.severity == "critical"
    assert made.rule == "sequential"
    evidence = json.loads(made.metadata)
    seen = evidence["rules"]["sequential"]
    assert seen["firstDay"] == "2026-10-27"
    assert seen["changeInterval"][0] <= seen["change"] <= seen["changeInterval"][1] < -0.3
    assert [one["count"] for one in seen["days"]] == [10] * 6
    assert len(evidence["exchanges"]) == 10
    assert all(one["score"] < 0.45 and one["scoreId"].startswith("score ops-") for one in evidence["exchanges"])
    assert (evidence["samplingMix"][0]) == {
        "sampling_reason": "first_turns",
        "before": 350,
        "after": 60,
        "share_before": 1.0,
        "share_after": 1.0,
    }
    assert evidence["madeWith"]["judge_model"] == "claude-haiku-4-5"
    assert made.baseline_id == evidence["baseline"]["id"]


def test_the_queries_of_the_evidence_find_the_same_again(store: Store) -> None:
    """They are there to be run."""
    dimensions = (DimensionScore(dimension="scope_compliance", score=0.5),)
    put(store, "scores", history(fallen(6), 40, tier1_flags=("rude",), tier2_dimensions=dimensions))
    evidence = json.loads(checked(store).incidents[0].metadata)
    by_name = {one["name"]: one for one in evidence["queries"]}
    found = {"daily_averages", "watched_hours", "incident_exchanges", "sampling_change", "slices"}
    assert set(by_name) == {*found, "reason_change", "dimension_change"}
    for name, query in by_name.items():
        values = {key: _moment(value) for key, value in query["parameters"].items()}
        assert query_rows(store.cursor(), name, values), name
    again = query_rows(
        store.cursor(), "incident_exchanges", {k: _moment(v) for k, v in by_name["incident_exchanges"]["parameters"].items()}
    )
    assert [one["scoreId"] for one in evidence["exchanges"]] == [row["score_id"] for row in again]


def _moment(value: Any) -> Any:
    return datetime.fromisoformat(value) if isinstance(value, str) and value.endswith("Z") else value


@pytest.mark.parametrize("a_day", [3, 10])
def test_what_is_as_it_was_makes_no_incident(store: Store, a_day: int) -> None:
    """A watch that cries wolf is switched off."""
    put(store, "scores", history(steady, 60, a_day=a_day))
    for back in range(20, -1, -1):
        assert checked(store, END - back * DAY).incidents == ()


def test_two_checks_at_one_moment_make_the_same_records(store: Store) -> None:
    """A check that was cut off is made again, and nothing is there twice."""
    put(store, "scores", history(fallen(6), 40))
    with Store(None) as other:
        put(other, "scores", history(fallen(6), 40))
        first, second = checked(store), checked(other)
    assert first.baseline == second.baseline
    assert first.incidents == second.incidents
    assert checked(store).incidents == ()
    assert len(incidents(store)) == 1


def test_a_check_that_was_cut_off_after_its_baseline_goes_on(store: Store) -> None:
    """A kill between the two topics must not lose the incident."""
    put(store, "scores", history(fallen(6), 40))
    with Store(None) as other:
        put(other, "scores", history(fallen(6), 40))
        whole = checked(other)
    assert whole.baseline is not None
    put(store, "baselines", [whole.baseline])
    again = checked(store)
    assert again.is_new_baseline is False
    assert again.incidents == whole.incidents


def test_an_incident_that_goes_on_takes_up_the_days_and_nothing_is_opened(store: Store) -> None:
    """Seen every minute, it is still one incident; what is new about it is a new day."""
    put(store, "scores", history(fallen(6), 40))
    made = checked(store).incidents[0]
    assert checked(store, END + timedelta(minutes=2)).incidents == ()
    put(store, "scores", [one for one in history(fallen(8), 42, end=END + 2 * DAY, name="-later") if one.exchange_at > END])
    (later,) = checked(store, END + 2 * DAY).incidents
    assert later.incident_id == made.incident_id
    assert later.revision == 1
    assert later.status == "open"
    assert json.loads(later.metadata)["rules"]["sequential"]["until"] == "2026-11-03"
    assert later.detected_at == made.detected_at
    assert later.checked_at == END + 2 * DAY


def test_numbers_alone_are_written_once_an_hour(store: Store) -> None:
    """Every score changes them; a revision for each would bury the incident."""
    put(store, "scores", history(fallen(6), 40))
    checked(store)
    at = END + timedelta(minutes=30)
    put(store, "scores", history(fallen(6), 0, end=at, name="-more"))
    assert checked(store, at).incidents == ()
    assert len(checked(store, END + HOUR).incidents) == 1


@pytest.mark.parametrize(("decision", "status"), [(NEW_NORMAL, RESOLVED), (DISMISSED, DISMISSED)])
def test_a_change_that_was_decided_on_opens_nothing_while_it_goes_on(store: Store, decision: str, status: str) -> None:
    """Whoever dismissed it has seen it; to be told again tomorrow teaches nobody anything."""
    put(store, "scores", history(fallen(16), 50, end=END + 10 * DAY))
    decide(store, checked(store).incidents[0], decision)
    for day in range(11):
        checked(store, END + day * DAY)
    assert incidents(store) == [("drift", "tier2", "down", status)]


def test_what_got_worse_after_a_decision_opens_an_incident(store: Store) -> None:
    """What was dismissed was a fall to 0.6, not one to 0.2."""
    quality: Callable[[int], float] = lambda back: 0.2 if back < 6 else 0.65 if back < 36 else 0.9  # noqa: E731 - three levels
    put(store, "scores", history(quality, 76, end=END + 30 * DAY))
    (made,) = checked(store).incidents
    decide(store, made, DISMISSED)
    for day in range(31):
        checked(store, END + day * DAY)
    found = incidents(store, "status, direction, detected_at::DATE::VARCHAR")
    assert ("dismissed", "down", "2026-11-01") in found
    assert [one[:2] for one in found if one[0] == "open"] == [("open", "down")]
    assert next(day for status, _, day in found if status == "open") > "2026-11-25"


def test_a_decision_without_its_incident_is_made_good_by_the_next_check(store: Store) -> None:
    """A kill between the review and the revision: what a person decided counts."""
    put(store, "scores", history(fallen(6), 40))
    checked(store)
    with Store(None) as other:
        put(other, "scores", history(fallen(6), 40))
        wanted = decide(other, checked(other).incidents[0], NEW_NORMAL)
        frame = other.read("reviews", 0, 10)["Review"].drop("_offset")
        (said,) = (msgspec.convert(row, Review) for row in frame.to_dicts())
    put(store, "reviews", [said])
    checked(store, END + timedelta(minutes=5))
    ((status, by, at),) = incidents(store, "status, resolved_by, resolved_at")
    assert status == wanted.status
    assert by == "ann"
    assert at == END.replace(tzinfo=None)


def test_re_opening_takes_a_decision_back(store: Store) -> None:
    """Nobody has resolved what is open."""
    put(store, "scores", history(fallen(6), 40))
    made = checked(store).incidents[0]
    decide(store, made, DISMISSED)
    again = decide(store, made, "open", END + HOUR)
    assert again.status == "open"
    assert again.resolved_at is None
    assert again.resolved_by is None
    assert again.revision == 2
    assert store.cursor().execute("SELECT status FROM reviews ORDER BY occurred_at").fetchall() == [("dismissed",), ("open",)]


class Late(StorePublisher):
    """Over Kafka records land late, and those of two topics not together: here those of the topics in `held` never do."""

    held: tuple[str, ...] = ()

    async def publish(self, topic: str, records: Sequence[Record]) -> PublishResult:
        """Take them in, to land or not."""
        return PublishResult(0, 0, []) if topic in self.held else await super().publish(topic, records)


def test_a_decision_that_has_landed_does_not_undo_the_next_one(store: Store) -> None:
    """Somebody dismisses, thinks again and re-opens, and the check sees the first of the two decisions alone."""
    put(store, "scores", history(fallen(6), 40))
    log = Late(store, Policy(), lambda: END)
    watch = Watch(log)

    async def run() -> tuple[Checked, Incident | None]:
        (first,) = await watch.check(["ops"])
        incident_id = first.opened[0].incident_id
        log.held = ("incidents",)
        await watch.decide("ops", incident_id, DISMISSED, "ann")
        log.held = ("incidents", "reviews")
        await watch.decide("ops", incident_id, "open", "ann")
        (again,) = await watch.check(["ops"])
        return again, await watch.incident("ops", incident_id)

    again, incident = asyncio.run(run())
    assert store.cursor().execute("SELECT status FROM reviews").fetchall() == [("dismissed",)]
    assert incident is not None
    assert again.incidents == ()
    assert incident.status == "open"
    assert incident.revision == 2


def test_an_incident_of_another_project_is_none(store: Store) -> None:
    """Its id alone opens nothing, whether it has landed or was just published."""
    put(store, "scores", history(fallen(6), 40))
    log = Late(store, Policy(), lambda: END)
    log.held = ("incidents",)
    watch = Watch(log)

    async def run() -> list[Incident | None]:
        (found,) = await watch.check(["ops"])
        published = found.opened[0].incident_id
        log.held = ()
        await log.publish("incidents", [msgspec.structs.replace(found.opened[0], incident_id="landed")])
        return [await watch.incident(project, one) for project in ("ops", "other") for one in (published, "landed")]

    assert [one is not None for one in asyncio.run(run())] == [True, True, False, False]


def test_a_baseline_is_kept_fresh_and_no_fresher(store: Store) -> None:
    """Once a day is enough, and a project without one gets one."""
    put(store, "scores", history(steady, 40))
    first = checked(store)
    assert first.is_new_baseline
    assert not checked(store, END + 23 * HOUR).is_new_baseline
    assert checked(store, END + 25 * HOUR).is_new_baseline
    (known,) = query_rows(store.cursor(), "baseline", {"project": "ops", "as_of": END, "days": 14})
    assert first.baseline is not None
    assert (known["tier2_mean"], known["tier2_count"], known["exchange_count"]) == pytest.approx(
        (first.baseline.tier2.mean, first.baseline.tier2.count, first.baseline.exchange_count)
    )
    assert known["tier2_stddev"] == pytest.approx(first.baseline.tier2.stddev)


def test_an_open_incident_keeps_its_baseline(store: Store) -> None:
    """A baseline that swallowed the changed days would call them normal, and the drift would heal by itself."""
    put(store, "scores", history(fallen(26), 70, end=END + 20 * DAY))
    before = checked(store).baseline
    assert before is not None
    for day in range(1, 21):
        now = checked(store, END + day * DAY)
        assert not now.is_new_baseline
        assert now.baseline == before
    decide(store, only(store), DISMISSED, END + 20 * DAY)
    assert checked(store, END + 20 * DAY + 2 * HOUR).is_new_baseline


def only(store: Store) -> Incident:
    """The one incident of the project."""
    (one,) = query_records(store.cursor(), "watched_incidents", Incident, {"projects": ["ops"]})
    return one


def test_late_scores_land_on_their_own_days_and_open_nothing(store: Store) -> None:
    """A gateway that was cut off for a week and delivers at once: what comes today did not happen today."""
    scores = history(steady, 40)
    late = [one for one in scores if 10 <= (END - one.exchange_at).days < 20]
    put(store, "scores", [one for one in scores if one not in late])
    assert checked(store).incidents == ()
    put(store, "scores", [msgspec.structs.replace(one, scored_at=END) for one in late])
    assert checked(store, END + timedelta(minutes=2)).incidents == ()


def test_a_drift_that_comes_late_is_found_on_its_days(store: Store) -> None:
    """Late is not never."""
    scores = history(fallen(6), 40)
    late = [one for one in scores if (END - one.exchange_at).days < 6]
    put(store, "scores", [one for one in scores if one not in late])
    assert checked(store).incidents == ()
    put(store, "scores", [msgspec.structs.replace(one, scored_at=END + DAY) for one in late])
    (made,) = checked(store, END + timedelta(minutes=2)).incidents
    assert json.loads(made.metadata)["rules"]["sequential"]["firstDay"] == "2026-10-27"


@pytest.mark.parametrize(
    "by",
    [
        {"judge_model": "claude-sonnet-4-5"},
        {"methodology": "tilt", "methodology_digest": "1" * 16},
        {"rule_version": "eval-2"},
        {"simulated": True},
        {"policy_digest": "1" * 16},
    ],
    ids=lambda by: next(iter(by)),
)
def test_history_that_is_judged_again_by_others_is_no_drift(store: Store, by: dict[str, object]) -> None:
    """Every score fell by 0.3 overnight, and the agents did nothing: another measure was laid on."""
    scores = history(steady, 40)
    put(store, "scores", scores)
    first = checked(store)
    put(store, "scores", shifted(rescored(scores, **by), -0.3))
    again = checked(store, END + timedelta(minutes=2))
    assert again.incidents == ()
    assert again.findings == ()
    assert again.is_new_baseline
    assert first.baseline is not None
    assert again.baseline is not None
    assert first.baseline.yardstick != again.baseline.yardstick
    for day in range(1, 4):
        assert checked(store, END + day * DAY).findings == ()


def test_rules_that_only_sample_otherwise_are_the_same_measure(store: Store) -> None:
    """An upgrade from eval-3 to eval-4 changes which turns are judged: drift is watched on, and no baseline starts anew."""
    before = [one for one in history(fallen(6), 40, rule_version="eval-3") if one.exchange_at < END - 8 * DAY]
    after = [one for one in history(fallen(6), 40, rule_version="eval-4") if one.exchange_at >= END - 8 * DAY]
    put(store, "scores", before)
    first = checked(store, END - 8 * DAY)
    put(store, "scores", after)
    found = checked(store)
    assert json.loads(found.incidents[0].metadata)["rules"]["sequential"]["firstDay"] == "2026-10-27"
    assert first.baseline is not None
    assert found.baseline is not None
    assert first.baseline.yardstick == found.baseline.yardstick


def test_days_of_another_judge_are_not_compared(store: Store) -> None:
    """From today on a stricter judge: until there are days to compare with, nobody says that the agent fell."""
    put(store, "scores", [one for one in history(steady, 40) if one.exchange_at < END - 6 * DAY])
    stricter = [
        one for one in history(steady, 40, judge_model="claude-opus-4-5", name="-new") if one.exchange_at >= END - 6 * DAY
    ]
    put(store, "scores", shifted(stricter, -0.4))
    found = checked(store)
    assert found.findings == ()
    assert _judge(store) == "claude-opus-4-5"
    assert found.baseline is not None
    assert found.baseline.tier2.count == 60


def _judge(store: Store) -> str:
    row = store.cursor().execute("SELECT arg_max(judge_model, exchange_at) FROM scores").fetchone()
    assert row is not None
    return str(row[0])


def test_a_policy_that_changed_with_the_scores_is_pointed_out(store: Store) -> None:
    """Other gates let other exchanges through: the agent need not have changed."""
    before = [one for one in history(fallen(6), 40) if one.exchange_at < END - 6 * DAY]
    after = [one for one in history(fallen(6), 40, policy_digest="1" * 16) if one.exchange_at >= END - 6 * DAY]
    put(store, "scores", [*before, *after])
    (made,) = checked(store).incidents
    assert json.loads(made.metadata)["policies"] != {"before": ["0" * 16], "after": ["0" * 16, "1" * 16]}
    assert "The policy differs before and after" in made.description


def test_anomalies_that_become_more_are_a_spike(store: Store) -> None:
    """A tier's mean can hold while a few exchanges go badly wrong."""
    put(store, "scores", history(steady, 40))
    put(store, "scores", history(steady, 2, a_day=8, name="-odd", anomaly=True, anomaly_reasons=("odd",)))
    spikes = [one for one in checked(store).incidents if one.type == "anomaly_spike"]
    assert [(one.tier, one.direction, one.status, one.rule) for one in spikes] == [(None, "up", "open", "rate_ratio")]
    seen = json.loads(spikes[0].metadata)["rules"]["rate_ratio"]
    assert seen["anomalies"] == 24
    assert seen["exchanges"] == 54
    assert {one["reason"] for one in json.loads(spikes[0].metadata)["exchanges"]} == {"odd"}


@pytest.mark.parametrize("since", [1, 5, 12])
def test_what_was_before_a_spike_is_said_truly_on_each_of_its_days(store: Store, since: int) -> None:
    """A baseline that holds the spike calls it normal, and an incident would say that nothing has changed."""
    put(store, "scores", history(steady, 40))
    put(store, "scores", history(steady, since - 1, a_day=10, name="-odd", anomaly=True, anomaly_reasons=("odd",)))
    (spike,) = [one for one in checked(store).findings if one.key.type == "anomaly_spike"]
    first = (END - (since - 1) * DAY).date()
    assert spike.since == first
    assert spike.numbers.baseline_rate == 0.0
    assert spike.numbers.baseline_from == (END - 40 * DAY).date()
    assert spike.numbers.baseline_until == first - DAY
    assert spike.before[1] == spike.after[0]
    assert f"From {(END - 40 * DAY).date()} to the day before, 0 of {10 * (41 - since)} had one" in spike.description


def test_a_project_that_is_not_audited_is_not_watched(store: Store) -> None:
    """It was switched off."""
    policy = Policy(projects={"ops": ProjectSettings(enabled=False)})
    put(store, "scores", history(fallen(6), 40))
    assert asyncio.run(watch_over(store, END, policy).check(["ops"])) == []
    assert incidents(store) == []


def test_rules_that_the_policy_leaves_out_make_nothing(store: Store) -> None:
    """Some want one rule, and some none."""
    put(store, "scores", history(fallen(6), 40))
    none = Policy(defaults=ProjectSettings(incident_rules=()))
    one = Policy(defaults=ProjectSettings(incident_rules=("consecutive_days",)))
    assert checked(store, policy=none).findings == ()
    assert {finding.rule for finding in checked(store, policy=one).findings} == {"consecutive_days"}


def test_projects_are_measured_apart(store: Store) -> None:
    """One agent's fall is no news of another."""
    put(store, "scores", history(fallen(6), 40))
    put(store, "scores", history(steady, 40, project="web", seed=8))
    found = asyncio.run(watch_over(store).check(["ops", "web", "none"]))
    assert {one.project: len(one.incidents) for one in found} == {"ops": 1, "web": 0, "none": 0}
    assert incidents(store, "project") == [("ops",)]


def test_a_change_in_what_is_sampled_is_no_drift(store: Store) -> None:
    """Disagreements score lower, and the judge sees more of them now; the agents are as they were."""
    chatty = history(steady, 40, a_day=6, sampling_reason="routine_sample", sampling_probability=1 / 3)
    terse = history(lambda _: 0.6, 40, a_day=2, name="-terse", sampling_reason="disagreement")
    put(store, "scores", [*chatty, *terse])
    assert [one for one in checked(store).findings if one.rule == "sequential"] == []


def test_a_second_fall_while_an_incident_is_open_is_an_incident_of_its_own(store: Store) -> None:
    """Averaged into the first it would have no first day and raise no alarm, and the first would be shown at a level it never had."""
    levels = {0: 0.5, 1: 0.7, 2: 0.85}
    put(store, "scores", history(lambda back: levels[(back >= 6) + (back >= 36)], 70))
    (first,) = checked(store, END - 30 * DAY).incidents
    for back in range(24, 6, -6):
        assert not checked(store, END - back * DAY).opened
    opened = [incident for back in (4, 2, 0) for incident in checked(store, END - back * DAY).opened]

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
def test_a_second_fall_within_two_weeks_of_the_first_has_its_own_day(store: Store, later: int) -> None:
    """Two agents seldom fall a fortnight apart; a week of the first fall is enough to compare the second one with."""
    levels = {0: 0.5, 1: 0.7, 2: 0.85}
    put(store, "scores", history(lambda back: levels[(back >= 4) + (back >= 4 + later)], 70, a_day=20))
    opened = [incident for back in (*range(later, 4, -3), 3, 2, 1, 0) for incident in checked(store, END - back * DAY).opened]

    assert [None if number == 0 else "fell further" in one.title for number, one in enumerate(opened)] == [None, True]
    assert [one.first_day.date() for one in opened if one.first_day] == [END.date() - (3 + later) * DAY, END.date() - 3 * DAY]


def test_history_that_is_imported_beside_live_data_is_no_fall_of_today(store: Store) -> None:
    """A month of another fleet at a higher level lowers nothing today, and wakes nobody."""
    live = history(steady, 30, name="live", a_day=20)
    older = history(lambda _: 0.97, 40, end=END - 12 * DAY, name="old", a_day=20)
    for scores, delay in ((live, timedelta(minutes=1)), (older, 60 * DAY)):
        put(store, "exchanges", [came(one, one.exchange_at + delay) for one in scores])
        put(store, "scores", scores)
    (found,) = checked(store).incidents

    assert found.cause == "history"
    assert found.confidence == "suspected"
    assert found.title.startswith("History was added (")
    assert checked(store, END + timedelta(hours=2)).incidents == ()


def test_history_that_ends_where_live_data_begins_is_no_fall(store: Store) -> None:
    """The month before is imported from another source: the gap between both is dated to the first live day, and wakes nobody."""
    live = history(steady, 20, name="live", a_day=20)
    older = history(lambda _: 0.97, 30, end=END - 21 * DAY, name="old", a_day=20)
    for scores, delay in ((live, timedelta(minutes=1)), (older, 60 * DAY)):
        put(store, "exchanges", [came(one, one.exchange_at + delay) for one in scores])
        put(store, "scores", scores)
    (found,) = checked(store).incidents

    assert found.cause == "history"
    assert found.confidence == "suspected"
    assert "gap between two sources" in found.description


@pytest.mark.parametrize("arrives", ["all live", "all imported", "imported up to yesterday"])
def test_a_fall_is_one_however_its_records_came(store: Store, arrives: str) -> None:
    """Where all came the same way, or nothing before the fall came live, its history explains nothing."""
    scores = history(fallen(6), 40, a_day=20)
    late = {"all live": lambda _: False, "all imported": lambda _: True, "imported up to yesterday": lambda at: at < END - DAY}[
        arrives
    ]
    put(store, "exchanges", [came(one, one.exchange_at + (50 * DAY if late(one.exchange_at) else HOUR)) for one in scores])
    put(store, "scores", scores)
    (found,) = checked(store).incidents

    assert found.confidence == "confirmed"
    assert "History" not in found.title


def came(one: Score, at: datetime) -> Exchange:
    """The exchange of a score, taken in at a moment."""
    return exchange(one.session_id, 1, project="ops", exchange_id=one.exchange_id, occurred_at=one.exchange_at, ingested_at=at)


def spots(store: Store, at: datetime = END) -> list[tuple[str, str, int]]:
    """The blind spots of a check: reason, subject and count."""
    looked = checked(store, at).looked
    assert looked is not None
    return [(spot.reason, spot.subject, spot.count) for spot in looked.blind_spots]


def test_where_all_is_compared_there_is_no_blind_spot(store: Store) -> None:
    """A notice that is always there is read by no one."""
    put(store, "scores", history(steady, 40, agent="scout"))
    assert spots(store) == []


def test_a_new_judge_blinds_the_judged_tiers_and_says_so(store: Store) -> None:
    """No incident for two weeks after a change of judge is no good news."""
    put(store, "scores", history(steady, 40, end=END - 4 * DAY))
    put(store, "scores", history(steady, 3, name="new", judge_model="claude-opus-5"))
    assert spots(store) == [("new_judge", "claude-opus-5", 4)]


def test_scores_of_a_second_judge_are_counted(store: Store) -> None:
    """Of two judges side by side only the one with most scores is compared."""
    put(store, "scores", history(steady, 40, a_day=6))
    put(store, "scores", history(steady, 40, a_day=4, name="other", judge_model="claude-opus-5"))
    assert spots(store) == [("other_judges", "claude-opus-5", 28)]


def test_monthly_batches_are_not_compared_and_say_so(store: Store) -> None:
    """A change needs six days with data before it, however long the calendar."""
    for back in (0, 28, 56):
        put(store, "scores", history(steady, 0, a_day=50, end=END - back * DAY, name=f"batch{back}"))
    assert spots(store) == [("few_days", "", 3)]


def test_an_agent_that_stopped_is_named(store: Store) -> None:
    """It has no scores that could fall."""
    put(store, "scores", history(steady, 30, agent="busy"))
    put(store, "scores", history(steady, 20, a_day=3, end=END - 5 * DAY, name="gone", agent="gone"))
    assert spots(store) == [("agent_stopped", "gone", 12)]


def test_agents_beyond_the_limit_are_counted_and_named(store: Store) -> None:
    """The 25th agent's failures would stay unseen."""
    runs = [
        ended_run(f"r{agent}-{day}-{number}", END - day * DAY, bad=False, agent=f"agent{agent:02}", project="ops")
        for agent in range(22)
        for day in range(3)
        for number in range(1 + (agent < 20))
    ]
    put(store, "diagnoses", runs)
    assert spots(store) == [("agents_beyond_limit", "agent20, agent21", 2)]


def test_a_mix_that_changed_is_called_so_and_stays_so(store: Store) -> None:
    """Traffic that moves to the weaker agent is no fault of either: rolling one of them back would not help."""
    for agent, level, shares in (("billing", 0.9, (8, 3)), ("checkout", 0.7, (2, 7))):
        for part, count in enumerate(shares):
            days, end = (20, END - 5 * DAY) if part == 0 else (4, END)
            put(
                store,
                "scores",
                history(lambda _, level=level: level, days, a_day=count, end=end, name=f"{agent}{part}", agent=agent),
            )
    (found,) = checked(store).incidents

    assert found.cause == "mix"
    assert found.title.startswith("The mix changed (")
    assert "checkout 20% → 70%" in found.title
    assert "roll_back" not in {action.id for action in why(found).actions}
    assert "check_mix" in {action.id for action in why(found).actions}
    assert checked(store, END + timedelta(hours=2)).incidents == ()


def test_a_spread_that_grew_is_a_finding_of_its_own_kind(store: Store) -> None:
    """The mean holds, and still the agent is not what it was: some answers are far better, others far worse."""
    put(store, "scores", history(lambda _: 0.6, 60, a_day=12, seed=3))
    for way in (0.3, 0.9):
        put(store, "scores", history(lambda _, way=way: way, 4, a_day=12, name=f"-{way}"))
    seen = checked(store)
    (found,) = [one for one in seen.findings if one.key.tier == "tier2"]
    assert found.kind == "spread"
    assert found.key.direction == "up"
    assert found.rule == "sequential"
    assert found.since == (END - 4 * DAY).date()
    assert found.is_worse
    assert found.interval is not None
    assert found.interval[0] <= found.since <= found.interval[1] <= found.interval[0] + 3 * DAY
    (made,) = [one for one in seen.incidents if one.tier == "tier2"]
    assert made.title.startswith("Spread of Tier 2 grew to ")
    assert "Tier 2 has not changed" in made.description
    exchanges = json.loads(made.metadata)["exchanges"]
    assert {one["score"] > 0.6 for one in exchanges} == {True, False}, "those on either side"


def test_what_waits_for_its_score_holds_back_the_hours_since(store: Store) -> None:
    """Where worse answers take longer to judge, the last hours look better than they are, every day anew."""
    at = END - timedelta(hours=5)
    put(store, "scores", history(steady, 40))
    better = history(lambda _: 1.0, 0, a_day=40, end=END - timedelta(hours=1), name="-soon", tier2_score=1.0)
    put(store, "scores", [one for one in better if one.exchange_at > at])
    assert [one.key.direction for one in checked(store).findings if one.key.tier == "tier2"] == ["up"]
    put(store, "exchanges", [exchange("slow", 1, project="ops", occurred_at=at, ingested_at=at)])
    assert [one for one in checked(store, END + timedelta(minutes=1)).findings if one.key.tier == "tier2"] == []
    much_later = END + timedelta(hours=20)
    assert [one.key.direction for one in checked(store, much_later).findings if one.key.tier == "tier2"] == ["up"]
