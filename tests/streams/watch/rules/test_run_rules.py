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
from support.watch_histories import END, ended_run, failure, fallen, history, put, runs, session_ids, worse_since

from analytics.queries import query_records, query_rows
from analytics.store.store import Store
from audit.drift.incident_evidence import evidence_of
from audit.drift.series import Counts, log_count_evidence
from audit.policy import Policy, ProjectSettings
from schemas.records import Diagnosis, Incident
from streams.log.sink import StorePublisher
from streams.watch import measures
from streams.watch.checking import Checked
from streams.watch.lifecycle import DISMISSED, RECOVERED, RESOLVED, levels_of, recovered_since
from streams.watch.measures import measure_runs
from streams.watch.rules import RunCase, by_runs, series_name
from streams.watch.watching import Watch

DAY = timedelta(days=1)
SINCE = (END - 80 * DAY).date()


@pytest.fixture
def store() -> Iterator[Store]:
    """Return an empty store."""
    with Store(None) as opened:
        yield opened


def checked(store: Store, project: str = "ops", policy: Policy | None = None, at: Any = END) -> Checked:
    """The check of a project."""
    (one,) = asyncio.run(Watch(StorePublisher(store, policy or Policy(), lambda: at)).check([project]))
    return one


def findings(store: Store, made: Sequence[Diagnosis]) -> list[tuple[str | None, str | None, str | None]]:
    """Agent, series and direction of what is found in runs of one project."""
    put(store, "diagnoses", made)
    with contextlib.closing(store.cursor()) as cursor:
        measured, parameters = measure_runs(cursor, ["ops"], SINCE, END)
    found = by_runs(RunCase(measured["ops"], {}, parameters)) if measured else ()
    return sorted((one.key.agent, one.key.tier, one.key.direction) for one in found)


def dip(back: int) -> float:
    """A share of unsafe runs that was high for ten days, three weeks ago."""
    return 0.9 if 21 <= back <= 30 else 0.03


def test_the_number_of_agents_that_are_watched_is_set_in_one_place(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The query that leaves agents out and the notice that names them must not count differently."""
    made = [one for name in ("a", "b", "c") for one in runs(lambda _: 0.0, name=name, agent=name)]
    put(store, "diagnoses", [*made, ended_run("more-a", END - DAY, agent="a"), ended_run("more-c", END - DAY, agent="c")])
    monkeypatch.setattr(measures, "MOST_AGENTS", 2)
    with contextlib.closing(store.cursor()) as cursor:
        measured, parameters = measure_runs(cursor, ["ops"], SINCE, END)
    assert [agent.agent for agent in measured["ops"].agents] == ["a", "c"]
    assert measured["ops"].watched_agents == parameters["most_agents"] == 2


def test_runs_that_are_back_end_their_incident(store: Store) -> None:
    """The rule sees a dip for weeks after it was mended, so an incident that waited for its silence would stay red for as long."""
    put(store, "diagnoses", runs(dip, days=75, a_day=3))
    for back in range(25, 17, -1):
        checked(store, at=END - back * DAY)
    (one,) = query_records(store.cursor(), "watched_incidents", Incident, {"projects": ["ops"]})
    assert one.status == RESOLVED
    assert one.resolution == RECOVERED
    assert one.severity == "critical"
    assert recovered_since(one) == (END - 20 * DAY).date()
    assert [found.title for found in checked(store).findings] == []


def test_runs_that_other_rules_diagnosed_are_no_level_to_come_back_to(store: Store) -> None:
    """New thresholds make another measure: that it lies lower is no recovery."""
    put(store, "diagnoses", runs(dip, days=75, a_day=3))
    (one,) = checked(store, at=END - 22 * DAY).incidents
    with contextlib.closing(store.cursor()) as cursor:
        measured, _ = measure_runs(cursor, ["ops"], SINCE, END)
    moved = evidence_of(one).moved[0]
    assert levels_of(None, measured["ops"])(moved)
    another = {"rule_version": "another"}
    other = {rule: msgspec.structs.replace(seen, made_with=another) for rule, seen in moved.rules.items()}
    assert levels_of(None, measured["ops"])(msgspec.structs.replace(moved, rules=other)) is None


WORSE = [("desk", "failure:cost_explosion", "up"), ("desk", "trust", "down"), ("desk", "unsafe", "up")]


def test_an_agent_whose_runs_became_unsafe_is_found_on_every_series_that_moved(store: Store) -> None:
    """Eight days of two runs are enough for a change from one in twenty to nine in ten."""
    assert findings(store, runs(worse_since(8))) == WORSE


def test_runs_that_got_better_are_found_as_well(store: Store) -> None:
    """Which fix helped is worth knowing, too."""
    assert {(series, way) for _, series, way in findings(store, runs(worse_since(10, share=0.0, before=0.8), a_day=3))} >= {
        ("unsafe", "down"),
        ("trust", "up"),
    }


def test_agents_are_looked_at_apart(store: Store) -> None:
    """One that got worse beside another that got better leaves the mean of the project as it was."""
    made = [*runs(worse_since(8)), *runs(worse_since(10, 0.05, 0.9), a_day=4, name="other", agent="night")]
    assert {("desk", "unsafe", "up"), ("night", "unsafe", "down")} <= set(findings(store, made))


def test_runs_of_no_named_agent_are_a_series_of_the_project(store: Store) -> None:
    """They are watched like others."""
    assert {agent for agent, _, _ in findings(store, runs(worse_since(8), agent=None))} == {None}


@pytest.mark.parametrize(
    "changed", [{"rule_version": "other"}, {"threshold_profile": "events-2"}, {"threshold_changes": '{"x":1}'}]
)
def test_runs_that_were_diagnosed_by_other_rules_are_not_compared(store: Store, changed: dict[str, Any]) -> None:
    """Stricter thresholds are not worse runs."""
    made = [
        msgspec.structs.replace(one, **changed) if one.ended_at and one.ended_at > END - 8 * DAY else one
        for one in runs(worse_since(8))
    ]
    assert findings(store, made) == []


def test_runs_that_were_diagnosed_again_count_as_they_stand_now(store: Store) -> None:
    """A history that was judged by the new rules is comparable to its end."""
    made = runs(worse_since(8))
    put(
        store,
        "diagnoses",
        [msgspec.structs.replace(one, rule_version="old") for one in made if one.ended_at and one.ended_at < END - 8 * DAY],
    )
    again = [msgspec.structs.replace(one, revision=1) for one in made]
    assert findings(store, again) == WORSE


def test_quiet_runs_raise_nothing() -> None:
    """Over sixty agents, ten weeks each, with a tenth of the runs unsafe: a false alarm is one in eight years of an agent."""
    found = []
    for number in range(3):
        made = [
            one
            for agent in range(20)
            for one in runs(lambda _: 0.1, 74, 2, name=f"{agent}", agent=f"a{agent}", seed=100 * number + agent)
        ]
        with Store(None) as fresh:
            found += findings(fresh, made)
    assert len(found) <= 3


def test_too_few_runs_tell_nothing(store: Store) -> None:
    """Ten runs are needed before a change."""
    assert findings(store, runs(worse_since(8), days=12, a_day=1)) == []


def test_runs_without_evidence_do_not_count(store: Store) -> None:
    """They have no trust: nothing was seen of them."""
    empty = {"trust_score": None, "readiness_level": "insufficient_evidence"}
    assert findings(store, [*runs(lambda _: 0.0), *runs(lambda _: 0.0, 8, 3, name="e", **empty)]) == []


def test_a_project_with_runs_and_no_scores_is_checked_and_gets_incidents(store: Store) -> None:
    """The demo's support-desk had 13 of 15 unsafe runs, and nobody was told."""
    put(store, "diagnoses", runs(worse_since(8)))
    made = checked(store)
    assert made.looked is not None
    assert made.looked.days == 14
    assert made.looked.exchanges == 0
    (one,) = made.opened
    assert one.type == "drift"
    assert one.rule == "runs"
    assert one.status == "open"
    assert one.agent == "desk"
    assert one.cause == "agent"
    assert {series.key.tier for series in evidence_of(one).moved} == {"trust", "unsafe", "failure:cost_explosion"}
    assert "of desk" in one.title
    assert made.baseline is None


def test_the_evidence_has_the_runs_and_the_queries_that_find_them_again(store: Store) -> None:
    """A person opens the worst run first."""
    put(store, "diagnoses", runs(worse_since(8)))
    (made,) = checked(store).opened
    evidence = json.loads(made.metadata)
    assert made.agent == "desk"
    assert len(evidence["runs"]) == 10
    assert all(one["readinessLevel"] == "unsafe_for_production" and one["runId"].startswith("run_") for one in evidence["runs"])
    assert evidence["madeWith"]["rule_version"] == "r"
    with contextlib.closing(store.cursor()) as cursor:
        answers = {query["name"]: query_rows(cursor, query["name"], query["parameters"]) for query in evidence["queries"]}
    assert set(answers) == {"run_days", "watched_runs", "incident_runs", "failure_change"}
    assert session_ids(evidence["runs"]) == {row["session_id"] for row in answers["incident_runs"]}
    seen = evidence["rules"]["runs"]
    told = {f"{row['day']}": row["mean"] for row in answers["run_days"]}
    assert {one["day"]: pytest.approx(one["average"], abs=1e-3) for one in seen["days"]}.items() <= told.items()


def test_the_reasons_count_the_runs_that_the_rule_compared(store: Store) -> None:
    """A title "from 0 %" beside "before 3 of 36" is read as a contradiction: both are of the same days, hours and rules."""
    older = [
        msgspec.structs.replace(one, rule_version="old")
        for one in runs(lambda back: 1.0 if back > 25 else 0.0, name="old")
        if one.ended_at and one.ended_at < END - 20 * DAY
    ]
    put(store, "diagnoses", [*runs(worse_since(8, share=1.0, before=0.0)), *older])
    (made,) = checked(store).opened
    evidence = json.loads(made.metadata)
    seen = evidence["rules"]["runs"]
    (row,) = evidence["failures"]
    assert row["before"] == 0
    assert row["all_before"] == seen["runsBefore"]
    assert row["after"] == seen["runsAfter"]
    assert row["all_after"] == seen["runsAfter"]
    assert seen["comparedSince"] == f"{(END - 30 * DAY).date()}"


def test_two_unsafe_runs_after_thirty_safe_ones_are_no_incident(store: Store) -> None:
    """By Fisher's exact test 1 in 496, looked at anew after every run: it was confirmed at odds of 10 to the power of 20."""
    put(store, "diagnoses", runs(worse_since(2, share=1.0, before=0.0), a_day=1))
    assert checked(store).findings == ()


def test_what_is_shown_as_evidence_is_what_the_counts_support(store: Store) -> None:
    """Five of five after none of twenty-six, one a day: the sum of the days on which it may have begun, each by its counts."""
    put(store, "diagnoses", runs(worse_since(5, share=1.0, before=0.0), a_day=1))
    seen = [one.numbers for one in checked(store).findings if one.key.tier == "unsafe"]
    before, after = Counts(np.array([0]), np.array([26])), Counts(np.array([5]), np.array([5]))
    most = float(log_count_evidence(before, after)[0])
    assert [0 < (one.log_evidence or 0) < most + math.log(5) for one in seen] == [True]


def test_a_check_that_is_repeated_opens_nothing_twice(store: Store) -> None:
    """One change is one incident, however many series of however many agents it moved."""
    put(store, "diagnoses", [*runs(worse_since(8)), *runs(worse_since(8), name="other", agent="night")])
    (made,) = checked(store).opened
    assert {one.key.agent for one in evidence_of(made).moved} == {"desk", "night"}
    assert checked(store, at=END + timedelta(minutes=1)).opened == ()


def test_what_was_decided_for_one_agent_is_not_decided_for_another(store: Store) -> None:
    """Both have a series of the same name."""
    put(store, "diagnoses", runs(worse_since(16)))
    for one in checked(store).opened:
        decide(store, one)
    put(store, "diagnoses", runs(worse_since(6), name="other", agent="night"))
    assert {one.agent for one in checked(store).opened} == {"night"}


def decide(store: Store, incident: Incident) -> None:
    """A person dismisses an incident."""
    asyncio.run(
        Watch(StorePublisher(store, Policy(), lambda: END)).decide(incident.project, incident.incident_id, DISMISSED, "ann")
    )


def test_scores_and_runs_of_one_project_are_both_watched(store: Store) -> None:
    """And a policy that leaves the rule out is told of the scores alone."""
    put(store, "scores", history(fallen(6), 40))
    put(store, "diagnoses", runs(worse_since(8)))
    assert {"tier2", "unsafe"} <= {one.key.tier for one in checked(store).findings}
    without = Policy(defaults=ProjectSettings(incident_rules=("sequential",)))
    assert {one.key.tier for one in checked(store, policy=without).findings} == {"tier2"}


def test_a_look_at_an_earlier_moment_knows_nothing_of_later_runs(store: Store) -> None:
    """Which is what `check-drift --as-of` is for."""
    put(store, "diagnoses", runs(worse_since(8)))
    assert checked(store, at=END - 9 * DAY).findings == ()


def test_shares_are_told_as_runs_and_stay_between_none_and_all(store: Store) -> None:
    """13 of 15 runs says more than 0.867."""
    put(store, "diagnoses", runs(worse_since(8, share=1.0, before=0.0)))
    unsafe = next(one for one in checked(store).findings if one.key.tier == "unsafe")
    assert "0 of 46 runs to 16 of 16 runs" in unsafe.description
    assert "101%" not in unsafe.description


def test_many_runs_are_added_up_and_still_found(store: Store) -> None:
    """By the hour from 4 000 runs on: the sums are the same, and so is what is found."""
    made = runs(worse_since(8, 0.4, 0.1), days=40, a_day=110)
    assert findings(store, made) == WORSE


def test_a_failure_that_occurs_once_is_no_series(store: Store) -> None:
    """Nothing can have changed."""
    odd = ended_run("odd", END - DAY, bad=True, kind="skill_failure")
    put(store, "diagnoses", [*runs(lambda _: 0.2), odd])
    with contextlib.closing(store.cursor()) as cursor:
        measured, _ = measure_runs(cursor, ["ops"], SINCE, END)
    (agent,) = measured["ops"].agents
    assert agent.series == ("trust", "unsafe", "failure:cost_explosion")


def test_the_order_of_arrival_changes_nothing() -> None:
    """Files are imported in any."""
    made = [*runs(worse_since(8)), *runs(worse_since(9), name="o", agent="night")]
    shuffled = made.copy()
    random.Random(3).shuffle(shuffled)
    seen = []
    for order in (made, shuffled):
        with Store(None) as fresh:
            put(fresh, "diagnoses", order)
            seen.append(checked(fresh).findings)
    assert seen[0] == seen[1]


def test_series_have_names_for_people() -> None:
    """A failure is named by its type."""
    names = ["Trust", "Share of unsafe runs", "Share of runs with infinite tool loop"]
    assert names == [series_name(one) for one in ("trust", "unsafe", "failure:infinite_tool_loop")]
    assert failure("x").type == "x"


def test_a_trust_that_most_runs_share_falls_by_its_counts(store: Store) -> None:
    """Trust was always 100, so it had no spread; three runs of one hour at 90 and later ones at 100 are no fall of trust to 96."""
    made = [
        ended_run(f"r-{back}-{number}", END - back * DAY - number * timedelta(minutes=10))
        for back in range(70)
        for number in range(3)
    ]
    low = {f"r-2-{number}" for number in range(3)}
    assert (
        findings(store, [msgspec.structs.replace(run, trust_score=90) if run.session_id in low else run for run in made]) == []
    )


def test_a_trust_that_most_runs_share_still_falls_when_its_counts_do(store: Store) -> None:
    """Ten of twelve runs below it in four days are a change, by trust as by any share; a level of readiness is not needed for it."""
    made = [
        ended_run(f"r-{back}-{number}", END - back * DAY - number * timedelta(hours=3))
        for back in range(60)
        for number in range(3)
    ]
    later = {f"r-{back}-{number}" for back in range(4) for number in range(3)} - {"r-0-0", "r-2-1"}
    made = [msgspec.structs.replace(run, trust_score=90) if run.session_id in later else run for run in made]
    assert findings(store, made) == [("desk", "trust", "down")]
