"""How findings become incidents: one incident per change, a revision only for news, and what a person's decision means."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.watch_histories import DAY, END, EVIDENCE, RUNS, TODAY, check, finding, opened

from audit.drift.incident_evidence import Cause, Evidence
from audit.drift.series import Reference
from audit.drift.watched_series import CRITICAL, DOWN, DRIFT, NOTICE, WARNING, Key
from schemas.records import Incident
from streams.watch.evidence import UNEXPLAINED, Explanation
from streams.watch.findings import Finding
from streams.watch.incidents import apply_decision, build_record, derive_references, plan_updates
from streams.watch.lifecycle import DISMISSED, NEW_NORMAL


def test_rules_that_find_one_change_make_one_incident() -> None:
    """The incident has the worst severity, the title of the first rule and the evidence of both."""
    incident = opened(
        finding(started_days_ago=5, rule=EVIDENCE, headline="by evidence"), finding(started_days_ago=3, severity=CRITICAL)
    )
    assert incident.title.startswith("ops: by evidence since ")
    assert incident.rule == EVIDENCE
    assert incident.severity == CRITICAL
    assert incident.status == "open"
    assert incident.revision == 0
    assert set(json.loads(incident.metadata)["rules"]) == {EVIDENCE, RUNS}


def test_directions_are_separate_incidents_and_series_are_not() -> None:
    """Tiers that fell on the same days are one change, and so is a spike; a tier that rose is another one."""
    other_keys = [Key(DRIFT, "tier2_5", "up"), Key(DRIFT, "tier3", DOWN), Key("anomaly_spike", None, "up")]
    incidents = check([finding(started_days_ago=3), *(finding(started_days_ago=3, key=key) for key in other_keys)])
    assert len({incident.incident_id for incident in incidents}) == 2


def test_a_finding_without_news_is_not_written_again() -> None:
    """The watch checks every minute and must not write a record every minute."""
    assert check([finding(started_days_ago=3)], [opened(finding(started_days_ago=3))], END + timedelta(minutes=1)) == []


def test_a_further_rule_revises_the_incident() -> None:
    """The stored incident keeps its id and title; the second rule is added to its evidence."""
    stored = opened(finding(started_days_ago=3))
    (revision,) = check(
        [finding(started_days_ago=5, rule=EVIDENCE, headline="by evidence"), finding(started_days_ago=3)],
        [stored],
        END + timedelta(minutes=1),
    )
    assert revision.incident_id == stored.incident_id
    assert revision.revision == 1
    assert revision.rule == RUNS
    assert revision.title == stored.title
    assert set(json.loads(revision.metadata)["rules"]) == {EVIDENCE, RUNS}


def test_severity_only_rises_while_the_incident_is_open() -> None:
    """Near two sigma it would otherwise change with every score."""
    stored = opened(finding(started_days_ago=3))
    (worse,) = check([finding(started_days_ago=3, severity=CRITICAL)], [stored], END + timedelta(minutes=1))
    assert worse.severity == CRITICAL
    assert check([finding(started_days_ago=3, severity=WARNING)], [worse], END + timedelta(minutes=2)) == []
    (later,) = check([finding(started_days_ago=3, severity=WARNING, size=1.4)], [worse], END + timedelta(hours=2))
    assert later.severity == CRITICAL


def test_a_check_of_an_earlier_time_changes_no_later_finding() -> None:
    """A check as of last week has seen fewer days, and the change looked larger at its start."""
    stored = opened(finding(started_days_ago=3))
    assert check([finding(started_days_ago=3, ended_days_ago=2, severity=CRITICAL, size=3.0)], [stored], END - 2 * DAY) == []


def test_days_that_left_the_window_are_kept() -> None:
    """The evidence lists all days of a drift, not only those of the last week."""
    stored = opened(finding(started_days_ago=3))
    (later,) = check([finding(started_days_ago=1, ended_days_ago=-4)], [stored], END + 4 * DAY)
    rule = json.loads(later.metadata)["rules"][RUNS]
    assert [day["day"] for day in rule["days"]] == [f"{TODAY + number * DAY}" for number in range(-3, 5)]
    assert rule["since"] == f"{TODAY - 3 * DAY}"
    assert rule["until"] == f"{TODAY + 4 * DAY}"


def test_another_cause_is_reported_within_the_hour() -> None:
    """Anchors are judged once a day, so the cause may be found after the incident was opened."""
    stored = opened(finding(started_days_ago=3))
    assert check([finding(started_days_ago=3)], [stored], END + timedelta(minutes=59), "judge") == []
    (revision,) = check([finding(started_days_ago=3)], [stored], END + timedelta(minutes=60), "judge")
    assert revision.cause == "judge"
    assert "The judge explains it." in revision.description
    assert json.loads(revision.metadata)["cause"] == {"cause": "judge"}


def test_an_incident_that_only_the_judge_explains_is_a_notice_and_no_longer() -> None:
    """A critical incident says that an agent got worse. If the judge leaves something to explain, the agent may be the reason."""
    whole = Explanation("judge", "", Cause(cause="judge", reason="fully_explained"))
    most = Explanation("judge", "", Cause(cause="judge", reason="explained"))
    fall = finding(started_days_ago=3, severity=CRITICAL)

    def explained(cause: Explanation, findings: Sequence[Finding], *stored: Incident) -> Incident:
        (update,) = plan_updates(findings, stored, END + len(stored) * DAY, lambda _: cause)
        return build_record(update, "ops", END + len(stored) * DAY, Evidence())

    notice = explained(whole, [fall])
    assert (notice.severity, notice.cause, notice.confidence) == (NOTICE, "judge", "confirmed")
    assert notice.title.startswith("ops: the judge changed, so ")
    assert explained(most, [fall]).severity == CRITICAL
    assert explained(most, [fall], notice).severity == CRITICAL
    spike = finding(started_days_ago=3, key=Key("anomaly_spike", None, "up"), severity=CRITICAL)
    later = explained(UNEXPLAINED, [spike], notice)
    assert (later.severity, later.cause) == (NOTICE, "judge")


@pytest.mark.parametrize(("decision", "status"), [(NEW_NORMAL, "resolved"), (DISMISSED, "dismissed")])
def test_a_decided_change_that_continues_opens_no_incident(decision: str, status: str) -> None:
    """Each check adds its day to the decided incident, so that the next check recognizes the same change for weeks."""
    stored = [apply_decision(opened(finding(started_days_ago=3)), decision, "ann", END)]
    for day in range(1, 30):
        incidents = check([finding(started_days_ago=6 - day, ended_days_ago=-day)], stored, END + day * DAY)
        assert [(incident.incident_id, incident.status, incident.resolved_by) for incident in incidents] == [
            (stored[0].incident_id, status, "ann")
        ]
        stored = incidents
    assert stored[0].severity == WARNING


@pytest.mark.parametrize(
    ("worse", "opens"), [({"severity": CRITICAL}, True), ({"size": 2.3}, True), ({"size": 2.2}, False), ({}, False)]
)
def test_a_decided_change_that_gets_worse_opens_an_incident(worse: dict[str, object], opens: bool) -> None:
    """The decision was made about a smaller change."""
    stored = apply_decision(opened(finding(started_days_ago=3)), DISMISSED, "ann", END)
    incidents = check([finding(started_days_ago=3, **worse)], [stored], END + timedelta(minutes=1))
    assert [(incident.status, incident.revision) for incident in incidents] == ([("open", 0)] if opens else [])


def test_slow_growth_is_measured_from_the_decision() -> None:
    """A size that grows 10% a day is half as large again after five days; it is compared with the size at the decision."""
    stored, size = [apply_decision(opened(finding(started_days_ago=3)), DISMISSED, "ann", END)], 1.5
    for day in range(1, 6):
        size *= 1.1
        incidents = check([finding(started_days_ago=3, ended_days_ago=-day, size=size)], stored, END + day * DAY)
        if incidents[0].revision == 0:
            break
        stored = incidents
    assert day == 5
    assert incidents[0].status == "open"


def test_a_change_that_ended_and_returned_opens_an_incident() -> None:
    """There was a day with normal scores in between."""
    stored = apply_decision(opened(finding(started_days_ago=5, ended_days_ago=2)), DISMISSED, "ann", END)
    assert check([finding(started_days_ago=1, ended_days_ago=2)], [stored]) == []
    (revision,) = check([finding(started_days_ago=0, ended_days_ago=-3)], [stored], END + 3 * DAY)
    assert revision.status == "open"
    assert revision.revision == 0
    assert revision.incident_id != stored.incident_id


def test_a_reopened_incident_is_as_open_as_before() -> None:
    """Re-opening withdraws the decision, including the sizes it was made about."""
    resolved = apply_decision(opened(finding(started_days_ago=3)), DISMISSED, "ann", END)
    reopened = apply_decision(resolved, "open", "bob", END + DAY)
    assert reopened.status == "open"
    assert reopened.resolved_at is None
    assert reopened.resolved_by is None
    assert json.loads(reopened.metadata)["decidedSizes"] == {}
    (revision,) = check([finding(started_days_ago=3, ended_days_ago=-1)], [reopened], END + DAY)
    assert revision.incident_id == reopened.incident_id
    assert revision.revision == 3


def test_accepting_a_new_normal_moves_the_reference_of_an_ongoing_change() -> None:
    """An ongoing change moves its start, the days of a finished one are cut out, and an open incident changes nothing."""
    going_on = apply_decision(opened(finding(started_days_ago=5, rule=EVIDENCE)), NEW_NORMAL, "ann", END + DAY)
    over = apply_decision(
        opened(finding(started_days_ago=9, ended_days_ago=6, key=Key(DRIFT, "tier3", DOWN))), NEW_NORMAL, "ann", END
    )
    still_open = opened(finding(started_days_ago=3, key=Key(DRIFT, "tier1", DOWN)))
    assert derive_references([going_on, over, still_open]) == {
        "tier2": Reference(since=TODAY - 5 * DAY),
        "tier3": Reference(cut=((TODAY - 9 * DAY, TODAY - 6 * DAY),)),
    }


def test_unreadable_evidence_is_ignored() -> None:
    """Other programs may write incidents with any metadata."""
    broken = apply_decision(opened(finding(started_days_ago=3)), DISMISSED, "ann", datetime(2026, 11, 2, tzinfo=UTC))
    for metadata in ("", "[]", "{", '{"rules": {"x": 1}}', '{"rules": []}', '{"rules": {"x": {"since": "?"}}}'):
        unreadable = Incident(**{name: getattr(broken, name) for name in broken.__struct_fields__} | {"metadata": metadata})
        assert check([finding(started_days_ago=3)], [unreadable], END + DAY)
        assert derive_references([unreadable]) == {}


STEPS = st.lists(
    st.tuples(st.sampled_from([RUNS, EVIDENCE]), st.sampled_from([WARNING, CRITICAL]), st.integers(0, 9)),
    min_size=1,
    max_size=12,
)
"""For each of several days: the rule that finds the change, its severity, and for how many days the change lasts by then."""


def finding_on(day: int, rule: str, severity: str, days_long: int) -> Finding:
    """Return a finding of a change that has lasted for some days on a day after `END`."""
    return finding(started_days_ago=days_long - day, ended_days_ago=-day, rule=rule, severity=severity)


@given(STEPS)
def test_all_rules_share_one_open_incident(steps: list[tuple[str, str, int]]) -> None:
    """Whichever rules find the change, and in whichever order, the first check opens an incident and the others revise it."""
    stored: dict[str, Incident] = {}
    for day, step in enumerate(steps):
        revisions = check([finding_on(day, *step)], list(stored.values()), END + day * DAY)
        stored |= {incident.incident_id: incident for incident in revisions}

        assert [incident.status for incident in stored.values()] == ["open"]


@given(STEPS)
def test_a_change_has_at_most_one_open_incident_while_people_decide(steps: list[tuple[str, str, int]]) -> None:
    """Every third day all open incidents are dismissed; a check then continues the dismissed incident or opens one new incident."""
    stored: dict[str, Incident] = {}
    for day, step in enumerate(steps):
        at = END + day * DAY
        revisions = check([finding_on(day, *step)], list(stored.values()), at)
        for incident in revisions:
            earlier = stored.get(incident.incident_id)
            assert incident.revision == (0 if earlier is None else earlier.revision + 1)
        stored |= {incident.incident_id: incident for incident in revisions}

        assert len(revisions) == 1
        assert [incident.status for incident in stored.values()].count("open") <= 1
        if day % 3 == 2:
            stored = {key: dismiss_if_open(incident, at) for key, incident in stored.items()}


def dismiss_if_open(incident: Incident, at: datetime) -> Incident:
    """Return the incident as it is once a person has dismissed it, if it was open."""
    return apply_decision(incident, DISMISSED, "ann", at) if incident.status == "open" else incident
