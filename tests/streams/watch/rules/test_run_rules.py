"""Drift of runs: an agent whose runs got worse is found, with the runs that show it; what cannot be compared is not compared."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
import random
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

import msgspec
import numpy as np
import pytest
from support.watch_histories import END, ended_run, fallen, history, put, runs, session_ids, worse_since

from analytics.queries import query_records, query_rows
from analytics.store.store import Store
from audit.drift.incident_evidence import evidence_of
from audit.drift.series import Counts, log_count_evidence
from audit.policy import Policy, ProjectSettings
from schemas.records import Diagnosis, Incident
from streams.log.sink import StorePublisher
from streams.watch import measures
from streams.watch.checking import CheckResult
from streams.watch.lifecycle import DISMISSED, RECOVERED, RESOLVED, levels_of, recovered_since
from streams.watch.measures import measure_runs
from streams.watch.run_rules import RunRuleInput, find_run_changes
from streams.watch.watching import Watch

DAY = timedelta(days=1)
SINCE = (END - 80 * DAY).date()


@pytest.fixture
def store() -> Iterator[Store]:
    """Return an empty store."""
    with Store(None) as opened:
        yield opened


def check_project(store: Store, project: str = "ops", policy: Policy | None = None, at: Any = END) -> CheckResult:
    """Return the check of a project."""
    (result,) = asyncio.run(Watch(StorePublisher(store, policy or Policy(), lambda: at)).check([project]))
    return result


def findings(store: Store, records: Sequence[Diagnosis]) -> list[tuple[str | None, str | None, str | None]]:
    """Return agent, series and direction of the findings in the runs of one project."""
    put(store, "diagnoses", records)
    with contextlib.closing(store.cursor()) as cursor:
        measured, parameters = measure_runs(cursor, ["ops"], SINCE, END)
    changes = find_run_changes(RunRuleInput(measured["ops"], {}, parameters)) if measured else ()
    return sorted((change.key.agent, change.key.tier, change.key.direction) for change in changes)


def dip(back: int) -> float:
    """Return a share of unsafe runs that was high for ten days, three weeks ago."""
    return 0.9 if 21 <= back <= 30 else 0.03


def test_the_number_of_agents_that_are_watched_is_set_in_one_place(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """No agent is dropped: those with fewer runs are compared as one."""
    records = [run for name in ("a", "b", "c") for run in runs(lambda _: 0.0, name=name, agent=name)]
    put(store, "diagnoses", [*records, ended_run("more-a", END - DAY, agent="a"), ended_run("more-c", END - DAY, agent="c")])
    monkeypatch.setattr(measures, "MAX_AGENTS", 2)
    with contextlib.closing(store.cursor()) as cursor:
        measured, parameters = measure_runs(cursor, ["ops"], SINCE, END)
    assert [agent.agent for agent in measured["ops"].agents] == ["a", "c", measures.OTHER_AGENTS]
    assert parameters["most_agents"] == 2


def test_recovered_runs_end_their_incident(store: Store) -> None:
    """The rule finds a dip for weeks after its recovery; an incident that waited for the rule would stay open as long."""
    put(store, "diagnoses", runs(dip, days=75, a_day=3))
    for back in range(25, 17, -1):
        check_project(store, at=END - back * DAY)
    (incident,) = query_records(store.cursor(), "watched_incidents", Incident, {"projects": ["ops"]})
    assert incident.status == RESOLVED
    assert incident.resolution == RECOVERED
    assert incident.severity == "critical"
    assert recovered_since(incident) == (END - 20 * DAY).date()
    assert [finding.title for finding in check_project(store).findings] == []


def test_runs_diagnosed_by_other_rules_are_no_recovery(store: Store) -> None:
    """New thresholds change the measurement: a lower level under them is not a recovery."""
    put(store, "diagnoses", runs(dip, days=75, a_day=3))
    (incident,) = check_project(store, at=END - 22 * DAY).incidents
    with contextlib.closing(store.cursor()) as cursor:
        measured, _ = measure_runs(cursor, ["ops"], SINCE, END)
    series = evidence_of(incident).moved[0]
    assert levels_of(None, measured["ops"])(series)
    other_rules = {
        rule: msgspec.structs.replace(rule_evidence, made_with={"rule_version": "another"})
        for rule, rule_evidence in series.rules.items()
    }
    assert levels_of(None, measured["ops"])(msgspec.structs.replace(series, rules=other_rules)) is None


WORSE = [("desk", "failure:cost_explosion", "up"), ("desk", "trust", "down"), ("desk", "unsafe", "up")]


def test_an_agent_with_unsafe_runs_is_found_on_every_series_that_changed(store: Store) -> None:
    """Eight days of two runs are enough for a change from one in twenty to nine in ten."""
    assert findings(store, runs(worse_since(8))) == WORSE


def test_runs_that_improved_are_found_as_well(store: Store) -> None:
    """Users want to know which fix helped."""
    assert {
        (series, direction) for _, series, direction in findings(store, runs(worse_since(10, share=0.0, before=0.8), a_day=3))
    } >= {
        ("unsafe", "down"),
        ("trust", "up"),
    }


def test_agents_are_compared_separately(store: Store) -> None:
    """One agent that got worse and another that improved leave the project's mean unchanged."""
    records = [*runs(worse_since(8)), *runs(worse_since(10, 0.05, 0.9), a_day=4, name="other", agent="night")]
    assert {("desk", "unsafe", "up"), ("night", "unsafe", "down")} <= set(findings(store, records))


def test_runs_without_an_agent_are_a_series_of_the_project(store: Store) -> None:
    """A sender need not name its agent, and its runs are watched like others."""
    assert {agent for agent, _, _ in findings(store, runs(worse_since(8), agent=None))} == {None}


@pytest.mark.parametrize(
    "changed", [{"rule_version": "other"}, {"threshold_profile": "events-2"}, {"threshold_changes": '{"x":1}'}]
)
def test_runs_diagnosed_by_other_rules_are_not_compared(store: Store, changed: dict[str, Any]) -> None:
    """Stricter thresholds do not make runs worse."""
    records = [
        msgspec.structs.replace(run, **changed) if run.ended_at and run.ended_at > END - 8 * DAY else run
        for run in runs(worse_since(8))
    ]
    assert findings(store, records) == []


def test_rediagnosed_runs_count_by_their_latest_revision(store: Store) -> None:
    """A history that was diagnosed again by the new rules is comparable from its start."""
    records = runs(worse_since(8))
    put(
        store,
        "diagnoses",
        [msgspec.structs.replace(run, rule_version="old") for run in records if run.ended_at and run.ended_at < END - 8 * DAY],
    )
    rediagnosed = [msgspec.structs.replace(run, revision=1) for run in records]
    assert findings(store, rediagnosed) == WORSE


def test_quiet_runs_raise_no_alarm() -> None:
    """With sixty agents over ten weeks and a tenth of the runs unsafe, the rate is one false alarm in eight years per agent."""
    alarms = []
    for number in range(3):
        records = [
            run
            for agent in range(20)
            for run in runs(lambda _: 0.1, 74, 2, name=f"{agent}", agent=f"a{agent}", seed=100 * number + agent)
        ]
        with Store(None) as fresh:
            alarms += findings(fresh, records)
    assert len(alarms) <= 3


def test_too_few_runs_raise_no_alarm(store: Store) -> None:
    """The rule needs ten runs before a change."""
    assert findings(store, runs(worse_since(8), days=12, a_day=1)) == []


def test_runs_without_evidence_do_not_count(store: Store) -> None:
    """Such a run has no trust, because nothing was observed."""
    empty = {"trust_score": None, "readiness_level": "insufficient_evidence"}
    assert findings(store, [*runs(lambda _: 0.0), *runs(lambda _: 0.0, 8, 3, name="e", **empty)]) == []


def test_a_project_with_only_runs_is_checked_and_gets_incidents(store: Store) -> None:
    """In the demo, 13 of 15 runs of support-desk were unsafe, and nobody was alerted."""
    put(store, "diagnoses", runs(worse_since(8)))
    result = check_project(store)
    assert result.project_check is not None
    assert result.project_check.days == 14
    assert result.project_check.exchanges == 0
    (incident,) = result.opened
    assert incident.type == "drift"
    assert incident.rule == "runs"
    assert incident.status == "open"
    assert incident.agent == "desk"
    assert incident.cause == "agent"
    assert {series.key.tier for series in evidence_of(incident).moved} == {"trust", "unsafe", "failure:cost_explosion"}
    assert incident.title.startswith("desk: ")
    assert result.baseline is None


def test_the_evidence_has_the_runs_and_their_queries(store: Store) -> None:
    """An analyst opens the worst run first."""
    put(store, "diagnoses", runs(worse_since(8)))
    (incident,) = check_project(store).opened
    evidence = json.loads(incident.metadata)
    assert incident.agent == "desk"
    assert len(evidence["runs"]) == 10
    assert all(run["readinessLevel"] == "unsafe_for_production" and run["runId"].startswith("run_") for run in evidence["runs"])
    assert evidence["madeWith"]["rule_version"] == "r"
    with contextlib.closing(store.cursor()) as cursor:
        answers = {query["name"]: query_rows(cursor, query["name"], query["parameters"]) for query in evidence["queries"]}
    assert set(answers) == {"run_days", "watched_runs", "incident_runs", "failure_change"}
    assert session_ids(evidence["runs"]) == {row["session_id"] for row in answers["incident_runs"]}
    rule_evidence = evidence["rules"]["runs"]
    daily_means = {f"{row['day']}": row["mean"] for row in answers["run_days"]}
    assert {day["day"]: pytest.approx(day["average"], abs=1e-3) for day in rule_evidence["days"]}.items() <= daily_means.items()


def test_the_reasons_count_the_compared_runs(store: Store) -> None:
    """A title "from 0%" beside "before 3 of 36" looks like a contradiction, so both must use the same days, hours and rules."""
    older = [
        msgspec.structs.replace(run, rule_version="old")
        for run in runs(lambda back: 1.0 if back > 25 else 0.0, name="old")
        if run.ended_at and run.ended_at < END - 20 * DAY
    ]
    put(store, "diagnoses", [*runs(worse_since(8, share=1.0, before=0.0)), *older])
    (incident,) = check_project(store).opened
    evidence = json.loads(incident.metadata)
    rule_evidence = evidence["rules"]["runs"]
    (row,) = evidence["failures"]
    assert row["before"] == 0
    assert row["all_before"] == rule_evidence["runsBefore"]
    assert row["after"] == rule_evidence["runsAfter"]
    assert row["all_after"] == rule_evidence["runsAfter"]
    assert rule_evidence["comparedSince"] == f"{(END - 30 * DAY).date()}"


def test_two_unsafe_runs_after_thirty_safe_ones_are_no_incident(store: Store) -> None:
    """Fisher's exact test gives 1 in 496, repeated after every run; the rule used to confirm it at odds of 10 to the power of 20."""
    put(store, "diagnoses", runs(worse_since(2, share=1.0, before=0.0), a_day=1))
    assert check_project(store).findings == ()


def test_the_shown_evidence_is_supported_by_the_counts(store: Store) -> None:
    """Five of five runs after none of twenty-six, one per day: the evidence is a sum over the possible first days."""
    put(store, "diagnoses", runs(worse_since(5, share=1.0, before=0.0), a_day=1))
    numbers = [finding.numbers for finding in check_project(store).findings if finding.key.tier == "unsafe"]
    before, after = Counts(np.array([0]), np.array([26])), Counts(np.array([5]), np.array([5]))
    max_log_evidence = float(log_count_evidence(before, after)[0])
    assert [0 < (figures.log_evidence or 0) < max_log_evidence + math.log(5) for figures in numbers] == [True]


def test_a_repeated_check_opens_no_second_incident(store: Store) -> None:
    """One change is one incident, however many series and agents it affects."""
    put(store, "diagnoses", [*runs(worse_since(8)), *runs(worse_since(8), name="other", agent="night")])
    (incident,) = check_project(store).opened
    assert {series.key.agent for series in evidence_of(incident).moved} == {"desk", "night"}
    assert check_project(store, at=END + timedelta(minutes=1)).opened == ()


def test_a_decision_about_one_agent_does_not_apply_to_another(store: Store) -> None:
    """Both agents have a series of the same name."""
    put(store, "diagnoses", runs(worse_since(16)))
    for incident in check_project(store).opened:
        decide(store, incident)
    put(store, "diagnoses", runs(worse_since(6), name="other", agent="night"))
    assert {opened.agent for opened in check_project(store).opened} == {"night"}


def decide(store: Store, incident: Incident) -> None:
    """Dismiss an incident as a person."""
    asyncio.run(
        Watch(StorePublisher(store, Policy(), lambda: END)).decide(incident.project, incident.incident_id, DISMISSED, "ann")
    )


def test_scores_and_runs_of_a_project_are_both_watched(store: Store) -> None:
    """Under a policy without the rule for runs, only the scores are watched."""
    put(store, "scores", history(fallen(6), 40))
    put(store, "diagnoses", runs(worse_since(8)))
    assert {"tier2", "unsafe"} <= {finding.key.tier for finding in check_project(store).findings}
    without = Policy(defaults=ProjectSettings(incident_rules=("sequential",)))
    assert {finding.key.tier for finding in check_project(store, policy=without).findings} == {"tier2"}


def test_a_check_of_an_earlier_time_ignores_later_runs(store: Store) -> None:
    """`check-drift --as-of` relies on it."""
    put(store, "diagnoses", runs(worse_since(8)))
    assert check_project(store, at=END - 9 * DAY).findings == ()


def test_shares_are_reported_as_numbers_of_runs(store: Store) -> None:
    """13 of 15 runs says more than 0.867."""
    put(store, "diagnoses", runs(worse_since(8, share=1.0, before=0.0)))
    unsafe = next(finding for finding in check_project(store).findings if finding.key.tier == "unsafe")
    assert "0 of 46 runs to 16 of 16 runs" in unsafe.description
    assert "101%" not in unsafe.description


def test_a_change_is_found_in_hourly_sums_as_well(store: Store) -> None:
    """From 4,000 runs on, the rule uses hourly sums, which must give the same findings."""
    records = runs(worse_since(8, 0.4, 0.1), days=40, a_day=110)
    assert findings(store, records) == WORSE


def test_a_failure_that_occurs_once_is_not_a_series(store: Store) -> None:
    """A single failure cannot have changed."""
    odd = ended_run("odd", END - DAY, bad=True, kind="skill_failure")
    put(store, "diagnoses", [*runs(lambda _: 0.2), odd])
    with contextlib.closing(store.cursor()) as cursor:
        measured, _ = measure_runs(cursor, ["ops"], SINCE, END)
    (agent,) = measured["ops"].agents
    assert agent.series == ("trust", "unsafe", "failure:cost_explosion")


def test_the_order_of_arrival_changes_nothing() -> None:
    """Files may be imported in any order."""
    records = [*runs(worse_since(8)), *runs(worse_since(9), name="o", agent="night")]
    shuffled = records.copy()
    random.Random(3).shuffle(shuffled)
    results = []
    for order in (records, shuffled):
        with Store(None) as fresh:
            put(fresh, "diagnoses", order)
            results.append(check_project(fresh).findings)
    assert results[0] == results[1]


def test_a_trust_that_most_runs_share_does_not_fall_by_chance(store: Store) -> None:
    """Trust was always 100, without a spread: three runs at 90 in one hour and later ones at 100 are not a fall to 96."""
    records = [
        ended_run(f"r-{back}-{number}", END - back * DAY - number * timedelta(minutes=10))
        for back in range(70)
        for number in range(3)
    ]
    low = {f"r-2-{number}" for number in range(3)}
    assert (
        findings(store, [msgspec.structs.replace(run, trust_score=90) if run.session_id in low else run for run in records])
        == []
    )


def test_a_trust_that_most_runs_share_falls_when_its_counts_do(store: Store) -> None:
    """Ten of twelve runs below it in four days are a change, like that of any other share."""
    records = [
        ended_run(f"r-{back}-{number}", END - back * DAY - number * timedelta(hours=3))
        for back in range(60)
        for number in range(3)
    ]
    later = {f"r-{back}-{number}" for back in range(4) for number in range(3)} - {"r-0-0", "r-2-1"}
    records = [msgspec.structs.replace(run, trust_score=90) if run.session_id in later else run for run in records]
    assert findings(store, records) == [("desk", "trust", "down")]
