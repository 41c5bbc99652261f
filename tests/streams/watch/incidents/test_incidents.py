"""When findings make incidents: one a change, again only where there is news, whatever a person has decided."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.watch_histories import DAY, END, EVIDENCE, RUNS, TODAY, finding, opened, written

from audit.drift.series import Reference
from audit.drift.watched_series import CRITICAL, DOWN, DRIFT, WARNING, Key
from schemas.records import Incident
from streams.watch.incidents import decided, references_of
from streams.watch.lifecycle import DISMISSED, NEW_NORMAL


def test_rules_that_see_one_change_make_one_incident() -> None:
    """The worse of them says how bad it is, the first of them tells of it, and what each saw is kept."""
    made = opened(finding(5, rule=EVIDENCE, title="By evidence"), finding(3, severity=CRITICAL))
    assert made.title == "By evidence"
    assert made.rule == EVIDENCE
    assert made.severity == CRITICAL
    assert made.status == "open"
    assert made.revision == 0
    assert set(json.loads(made.metadata)["rules"]) == {EVIDENCE, RUNS}


def test_directions_and_types_are_apart_and_tiers_are_one() -> None:
    """What got worse on the same days is one change; what got better, and a spike, are others."""
    others = [Key(DRIFT, "tier2_5", "up"), Key(DRIFT, "tier3", DOWN), Key("anomaly_spike", None, "up")]
    made = written([finding(3), *(finding(3, key=key) for key in others)])
    assert len({one.incident_id for one in made}) == 3


def test_what_is_known_is_not_written_again() -> None:
    """A check a minute must not make a record a minute."""
    assert written([finding(3)], [opened(finding(3))], END + timedelta(minutes=1)) == []


def test_a_rule_that_joins_in_makes_a_revision_and_no_incident() -> None:
    """The incident was there first; that another rule sees it, too, is worth knowing."""
    known = opened(finding(3))
    (made,) = written([finding(5, rule=EVIDENCE, title="By evidence"), finding(3)], [known], END + timedelta(minutes=1))
    assert made.incident_id == known.incident_id
    assert made.revision == 1
    assert made.rule == RUNS
    assert made.title == "Tier 2 fell"
    assert set(json.loads(made.metadata)["rules"]) == {EVIDENCE, RUNS}


def test_severity_rises_and_does_not_fall_while_it_is_open() -> None:
    """At the edge of two sigma it would change with every score."""
    known = opened(finding(3))
    (worse,) = written([finding(3, severity=CRITICAL)], [known], END + timedelta(minutes=1))
    assert worse.severity == CRITICAL
    assert written([finding(3, severity=WARNING)], [worse], END + timedelta(minutes=2)) == []
    (later,) = written([finding(3, severity=WARNING, size=1.4)], [worse], END + timedelta(hours=2))
    assert later.severity == CRITICAL


def test_a_look_back_changes_nothing_of_what_was_seen_later() -> None:
    """A check as of last week knows fewer days, and sees a change at its start, when it looked larger."""
    known = opened(finding(3))
    assert written([finding(3, 2, severity=CRITICAL, size=3.0)], [known], END - 2 * DAY) == []


def test_the_days_that_left_the_window_are_kept() -> None:
    """All days of a drift are told, not just those of the last week."""
    known = opened(finding(3))
    (later,) = written([finding(1, -4)], [known], END + 4 * DAY)
    seen = json.loads(later.metadata)["rules"][RUNS]
    assert [one["day"] for one in seen["days"]] == [f"{TODAY + number * DAY}" for number in range(-3, 5)]
    assert (seen["since"], seen["until"]) == (f"{TODAY - 3 * DAY}", f"{TODAY + 4 * DAY}")


def test_another_cause_is_told_within_the_hour() -> None:
    """Anchors are judged once a day; what they say comes after the incident was opened."""
    known = opened(finding(3))
    assert written([finding(3)], [known], END + timedelta(minutes=59), "judge") == []
    (made,) = written([finding(3)], [known], END + timedelta(minutes=60), "judge")
    assert made.cause == "judge"
    assert "The judge explains it." in made.description
    assert json.loads(made.metadata)["cause"] == {"cause": "judge"}


@pytest.mark.parametrize(("decision", "status"), [(NEW_NORMAL, "resolved"), (DISMISSED, "dismissed")])
def test_what_was_decided_goes_on_without_a_new_incident(decision: str, status: str) -> None:
    """Week after week: each check takes up the day, so that the next one knows that it goes on."""
    known = [decided(opened(finding(3)), decision, "ann", END)]
    for day in range(1, 30):
        made = written([finding(6 - day, -day)], known, END + day * DAY)
        assert [(one.incident_id, one.status, one.resolved_by) for one in made] == [(known[0].incident_id, status, "ann")]
        known = made
    assert known[0].severity == WARNING


@pytest.mark.parametrize(
    ("worse", "opens"), [({"severity": CRITICAL}, True), ({"size": 2.3}, True), ({"size": 2.2}, False), ({}, False)]
)
def test_what_was_decided_opens_an_incident_when_it_got_worse(worse: dict[str, object], opens: bool) -> None:
    """What was decided was about less."""
    known = decided(opened(finding(3)), DISMISSED, "ann", END)
    made = written([finding(3, **worse)], [known], END + timedelta(minutes=1))
    assert opens is bool(made)
    assert not opens or (made[0].status, made[0].revision) == ("open", 0)


def test_slow_growth_is_measured_from_the_decision() -> None:
    """A tenth a day is half again after five days: the days that were taken up must not become the measure."""
    known, size = [decided(opened(finding(3)), DISMISSED, "ann", END)], 1.5
    for day in range(1, 6):
        size *= 1.1
        made = written([finding(3, -day, size=size)], known, END + day * DAY)
        if made[0].revision == 0:
            break
        known = made
    assert (day, made[0].status) == (5, "open")


def test_what_ended_and_came_back_opens_an_incident() -> None:
    """A day with scores that were as they should be lies between."""
    known = decided(opened(finding(5, 2)), DISMISSED, "ann", END)
    assert written([finding(1, 2)], [known]) == []
    (made,) = written([finding(0, -3)], [known], END + 3 * DAY)
    assert (made.status, made.revision) == ("open", 0)
    assert made.incident_id != known.incident_id


def test_re_opened_is_as_open_as_before() -> None:
    """What was decided counts no more."""
    resolved = decided(opened(finding(3)), DISMISSED, "ann", END)
    again = decided(resolved, "open", "bob", END + DAY)
    assert again.status == "open"
    assert again.resolved_at is None
    assert again.resolved_by is None
    assert json.loads(again.metadata)["decidedSizes"] == {}
    (made,) = written([finding(3, -1)], [again], END + DAY)
    assert (made.incident_id, made.revision) == (again.incident_id, 3)


def test_the_new_normal_moves_the_reference_of_what_goes_on() -> None:
    """From the first day of the change on; of one that was over by then the days are cut out, and what is open changes nothing."""
    going_on = decided(opened(finding(5, rule=EVIDENCE)), NEW_NORMAL, "ann", END + DAY)
    over = decided(opened(finding(9, 6, key=Key(DRIFT, "tier3", DOWN))), NEW_NORMAL, "ann", END)
    still_open = opened(finding(3, key=Key(DRIFT, "tier1", DOWN)))
    assert references_of([going_on, over, still_open]) == {
        "tier2": Reference(since=TODAY - 5 * DAY),
        "tier3": Reference(cut=((TODAY - 9 * DAY, TODAY - 6 * DAY),)),
    }


def test_evidence_that_cannot_be_read_is_none() -> None:
    """Whoever writes incidents past us can write anything."""
    broken = decided(opened(finding(3)), DISMISSED, "ann", datetime(2026, 11, 2, tzinfo=UTC))
    for metadata in ("", "[]", "{", '{"rules": {"x": 1}}', '{"rules": []}', '{"rules": {"x": {"since": "?"}}}'):
        odd = Incident(**{name: getattr(broken, name) for name in broken.__struct_fields__} | {"metadata": metadata})
        assert written([finding(3)], [odd], END + DAY)
        assert references_of([odd]) == {}


@given(
    st.lists(st.tuples(st.sampled_from([RUNS, EVIDENCE]), st.sampled_from([WARNING, CRITICAL]), st.integers(0, 9)), max_size=12)
)
def test_there_is_never_more_than_one_open_incident_of_a_kind(steps: list[tuple[str, str, int]]) -> None:
    """Whichever rules see it in whichever order, with people deciding now and then."""
    known: dict[str, Incident] = {}
    for number, (rule, severity, length) in enumerate(steps):
        at = END + number * DAY
        seen = [finding(length - number, -number, rule=rule, severity=severity)]
        for one in written(seen, list(known.values()), at):
            assert one.revision == (known[one.incident_id].revision + 1 if one.incident_id in known else 0)
            known[one.incident_id] = one
        assert sum(one.status == "open" for one in known.values()) <= 1
        if number % 3 == 2:
            known = {name: decided(one, DISMISSED, "ann", at) if one.status == "open" else one for name, one in known.items()}
