"""The life of an incident: what changes its status, what ends it, and which days each end removes from the reference."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.watch_histories import END, fallen, history, put, steady

from analytics.queries import query_records, query_rows
from analytics.store.store import Store
from audit.drift.incident_evidence import Level, evidence_of
from audit.drift.series import Reference, merge_spans
from audit.policy import Policy
from schemas.records import Incident
from streams.log.sink import StorePublisher
from streams.watch.checking import CheckResult
from streams.watch.incidents import apply_decision, derive_references
from streams.watch.lifecycle import (
    ACKNOWLEDGED,
    DECISIONS,
    DISMISSED,
    NEW_NORMAL,
    OPEN,
    RESOLVED,
    DayLevel,
    current,
    find_recovery_day,
    is_in_effect,
    is_live,
    recovered_since,
    set_decision,
)
from streams.watch.watching import Watch

DAY = timedelta(days=1)
TODAY = END.date()
FALL = Level(0.85, 0.45, 0.1)


@pytest.fixture
def store() -> Iterator[Store]:
    """Return an empty store."""
    with Store(None) as opened:
        yield opened


def watch(store: Store, at: datetime) -> Watch:
    """Return a watch without a memory besides the store, at a given time."""
    return Watch(StorePublisher(store, Policy(), lambda: at))


def check(store: Store, at: datetime = END) -> CheckResult:
    """Return the check of the project."""
    (check,) = asyncio.run(watch(store, at).check(["ops"]))
    return check


def decide(store: Store, incident: Incident, decision: str, at: datetime, author: str = "ann") -> Incident:
    """Decide on an incident as a person."""
    decision_result = asyncio.run(watch(store, at).decide("ops", incident.incident_id, decision, author))
    assert decision_result is not None
    return decision_result


def load_incidents(store: Store) -> list[Incident]:
    """Return the incidents of the project, oldest first."""
    return list(query_records(store.cursor(), "watched_incidents", Incident, {"projects": ["ops"]}))


def dip(first: int, last: int, to: float = 0.45) -> Callable[[int], float]:
    """Return a quality that is low between two days, counted back from the end."""
    return lambda back: to if last <= back <= first else 0.85


def plain(**changes: object) -> Incident:
    """Return an open incident with neutral values."""
    values = {
        "incident_id": "i",
        "revision": 0,
        "project": "ops",
        "type": "drift",
        "status": "open",
        "severity": "warning",
        "title": "",
        "description": "",
        "metadata": "{}",
        "detected_at": END,
    }
    return Incident(**(values | changes))  # type: ignore[arg-type]


def test_a_recovered_incident_resolves_itself_and_its_days_leave_the_reference(store: Store) -> None:
    """Nobody has to clear up after a repaired outage, and the outage does not become the normal level."""
    put(store, "scores", history(dip(16, 11), 60))
    check(store, END - 10 * DAY)
    for back in range(9, -1, -1):
        check(store, END - back * DAY)
    (incident,) = load_incidents(store)
    assert incident.status == RESOLVED
    assert incident.resolution == "recovered"
    assert incident.resolved_by == "driftline"
    assert incident.severity == "critical"
    assert incident.last_day is not None
    assert incident.last_day.date() == TODAY - 11 * DAY
    assert incident.resolved_at == END - 8 * DAY
    assert derive_references([incident]) == {"tier2": Reference(cut=((TODAY - 16 * DAY, TODAY - 11 * DAY),))}


def test_a_change_that_recovered_before_it_was_found_is_resolved_by_the_same_check(store: Store) -> None:
    """An import of last month's records is checked once, so an open incident would stay open forever."""
    put(store, "scores", history(dip(16, 11), 60))
    result = check(store)
    (incident,) = load_incidents(store)
    assert incident.revision == 1
    assert incident.status == RESOLVED
    assert incident.resolution == "recovered"
    assert recovered_since(incident) == TODAY - 10 * DAY
    assert [opened.incident_id for opened in result.opened] == [incident.incident_id]
    assert query_rows(store.cursor(), "untold_incidents", {"since": END - 90 * DAY, "now": END}) == []


def test_a_spike_is_open_until_its_rate_recovers(store: Store) -> None:
    """The rule stops finding it after two weeks, which does not mean that it recovered."""
    put(store, "scores", history(steady, 60))
    put(store, "scores", history(steady, 20, end=END - 4 * DAY, name="-odd", anomaly=True, anomaly_reasons=("odd",)))
    states = []
    for back in range(25, -1, -1):
        check(store, END - back * DAY)
        states.append(
            [(incident.status, incident.resolution) for incident in load_incidents(store) if incident.type == "anomaly_spike"]
        )
    state_changes = [list(group) for group, _ in itertools.groupby(states)]
    assert state_changes == [[], [("open", None)], [(RESOLVED, "recovered")]]
    assert 2 + 20 <= states.count([("open", None)]) <= 2 + 22
    (spike,) = (incident for incident in load_incidents(store) if incident.type == "anomaly_spike")
    assert spike.last_day is not None
    assert spike.last_day.date() == (END - 4 * DAY).date()


def test_a_recovery_is_not_an_improvement(store: Store) -> None:
    """A tier that returns to normal has not improved."""
    put(store, "scores", history(dip(20, 9, to=0.6), 60, a_day=30))
    for back in range(12, -1, -1):
        check(store, END - back * DAY)
    assert [(incident.direction, incident.resolution) for incident in load_incidents(store)] == [("down", "recovered")]


@pytest.mark.parametrize("decision", [ACKNOWLEDGED, OPEN])
def test_an_ongoing_incident_stays_open_and_keeps_its_reference(store: Store, decision: str) -> None:
    """An acknowledgement repairs nothing: the level is still low, and it is still one incident."""
    put(store, "scores", history(fallen(20), 60))
    (opened,) = check(store, END - 16 * DAY).opened
    decide(store, opened, decision, END - 15 * DAY)
    for back in range(14, -1, -1):
        check(store, END - back * DAY)
    (incident,) = load_incidents(store)
    assert is_live(incident)
    assert derive_references([incident]) == {}
    assert incident.acknowledged_by == ("ann" if decision == ACKNOWLEDGED else None)


def test_an_incident_can_be_taken_over(store: Store) -> None:
    """A shift ends, and the next one continues."""
    put(store, "scores", history(fallen(6), 40))
    (opened,) = check(store).opened
    decide(store, opened, ACKNOWLEDGED, END)
    assert decide(store, opened, ACKNOWLEDGED, END + DAY, "bob").acknowledged_by == "bob"
    assert [row[0] for row in store.cursor().execute("SELECT reviewer FROM reviews ORDER BY occurred_at").fetchall()] == [
        "ann",
        "bob",
    ]


def test_a_resolved_change_that_continues_is_found_again(store: Store) -> None:
    """A fix that did not work must not hide the problem."""
    put(store, "scores", history(fallen(20), 60))
    (opened,) = check(store, END - 16 * DAY).opened
    resolved = decide(store, opened, RESOLVED, END - 15 * DAY)
    assert resolved.resolution == "fixed"
    assert resolved.resolved_by == "ann"
    for back in range(14, -1, -1):
        check(store, END - back * DAY)
    first, second = load_incidents(store)
    assert first.status == RESOLVED
    assert second.status == OPEN
    assert second.detected_at <= END - 10 * DAY


def test_an_accepted_new_normal_is_the_reference(store: Store) -> None:
    """The change was wanted: it is not reported again, but later changes from it are."""
    put(store, "scores", history(lambda back: 0.2 if back < 4 else 0.5 if back < 30 else 0.85, 70))
    (opened,) = check(store, END - 26 * DAY).opened
    decide(store, opened, NEW_NORMAL, END - 25 * DAY)
    for back in range(24, -1, -1):
        check(store, END - back * DAY)
    first, second = load_incidents(store)
    assert first.status == RESOLVED
    assert first.resolution == "new_normal"
    assert second.status == OPEN
    assert second.detected_at >= END - 4 * DAY


@pytest.mark.parametrize(("decision", "gap"), [(DISMISSED, 12), (DISMISSED, 20), (RESOLVED, 16), (ACKNOWLEDGED, 12)])
def test_a_change_after_a_decided_dip_is_found_within_four_days(store: Store, decision: str, gap: int) -> None:
    """One decision must not blind the project; it used to cost two weeks without a reference."""
    fell = 5
    quality: Callable[[int], float] = lambda back: 0.75 if back < fell else dip(fell + gap + 6, fell + gap)(back)  # noqa: E731
    put(store, "scores", history(quality, 80, seed=gap))
    (opened,) = check(store, END - (fell + gap + 2) * DAY).opened
    decide(store, opened, decision, END - (fell + gap + 1) * DAY)
    for back in [*range(fell + gap, fell + gap - 5, -1), *range(fell, -1, -1)]:
        check(store, END - back * DAY)
    # What was said to be fixed before it was may have been found again, and have recovered since.
    later = [
        incident
        for incident in load_incidents(store)
        if incident.incident_id != opened.incident_id and incident.resolution is None
    ]
    assert [(incident.status, incident.direction) for incident in later] == [(OPEN, "down")]
    assert later[0].detected_at > END - fell * DAY


def test_a_reopened_incident_is_not_resolved_by_earlier_days(store: Store) -> None:
    """The person who reopened it has seen these days and decided otherwise."""
    put(store, "scores", history(dip(12, 6), 60))
    check(store, END - 6 * DAY)
    for back in range(5, 0, -1):
        check(store, END - back * DAY)
    (incident,) = load_incidents(store)
    assert incident.resolution == "recovered"
    decide(store, incident, OPEN, END - DAY)
    check(store, END)
    assert load_incidents(store)[0].status == OPEN
    put(store, "scores", history(steady, 3, end=END + 3 * DAY, name="-later"))
    check(store, END + 3 * DAY)
    assert load_incidents(store)[0].status == RESOLVED


def test_a_check_of_an_earlier_time_ends_no_incident(store: Store) -> None:
    """`check-drift --as-of` shows an earlier state and must not undo later findings."""
    put(store, "scores", history(dip(12, 6), 60))
    (opened,) = check(store, END - 7 * DAY).opened
    decide(store, opened, OPEN, END - 7 * DAY)
    check(store, END - 20 * DAY)
    assert is_live(load_incidents(store)[0])


@given(
    st.lists(st.tuples(st.floats(-0.05, 0.05), st.integers(1, 50)), min_size=2, max_size=14),
    st.sampled_from([1, -1]),
)
def test_recovered_days_end_a_change_and_other_days_do_not(days: list[tuple[float, int]], sign: int) -> None:
    """In either direction, a day has recovered if it is on the earlier side of the midpoint."""
    level = Level(0.5, 0.5 - sign * 0.4, 0.05)
    levels = [(level.before, True), (level.after, False)]
    for at, is_back in levels:
        found = [DayLevel(TODAY - number * DAY, at + noise, units) for number, (noise, units) in enumerate(days, start=1)]
        first = find_recovery_day(found, level, TODAY - 30 * DAY, TODAY)
        assert (found[-1].day if is_back else None) == first


def test_one_recovered_day_and_today_do_not_end_a_change() -> None:
    """A Sunday is not a recovery, and today is incomplete."""
    back = [DayLevel(TODAY - DAY, 0.85, 50), DayLevel(TODAY, 0.85, 50)]
    low = [DayLevel(TODAY - 2 * DAY, 0.45, 50)]
    assert find_recovery_day([*low, *back], FALL, TODAY - 9 * DAY, TODAY) is None
    assert find_recovery_day([*low, *back], FALL, TODAY - 9 * DAY, TODAY + DAY) == TODAY - DAY


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=8))
def test_cut_spans_cover_exactly_their_days(spans: list[tuple[int, int]]) -> None:
    """A normal day between two dips stays in the reference."""
    given_spans = [(TODAY + first * DAY, TODAY + (first + length) * DAY) for first, length in spans]
    reference = Reference(cut=merge_spans(given_spans))
    for number in range(60):
        day = TODAY + number * DAY
        assert reference.counts(day) is not any(first <= day <= last for first, last in given_spans)
    assert list(reference.cut) == sorted(reference.cut)
    assert all(one[1] + DAY < other[0] for one, other in zip(reference.cut, reference.cut[1:], strict=False))


@given(st.lists(st.tuples(st.sampled_from(DECISIONS), st.sampled_from(["ann", "bob"])), max_size=8))
def test_the_last_decision_counts_and_names_its_author(steps: Sequence[tuple[str, str]]) -> None:
    """It counts whatever was decided before, in any order."""
    incident = plain()
    for number, (decision, author) in enumerate(steps, start=1):
        incident = apply_decision(incident, decision, author, END + number * DAY)
        assert is_in_effect(incident, decision)
        assert incident.revision == number
        assert incident.decided_at == END + number * DAY
        assert is_live(incident) is (decision in {OPEN, ACKNOWLEDGED})
        assert ((None, None) if is_live(incident) else (author, END + number * DAY)) == (
            incident.resolved_by,
            incident.resolved_at,
        )
        assert decision != ACKNOWLEDGED or incident.acknowledged_by == author
        assert decision != OPEN or (incident.acknowledged_by, incident.last_day, incident.resolution) == (None, None, None)


def test_an_accepted_incident_is_called_the_new_normal() -> None:
    """Accepting moves the reference, so the state has that name now."""
    old = plain(status="accepted", resolved_at=END, resolved_by="ann")
    assert current(old).status == RESOLVED
    assert current(old).resolution == "new_normal"
    assert current(old).resolved_by == "ann"
    assert plain() == current(plain())
    assert is_in_effect(current(old), NEW_NORMAL)
    assert set_decision(plain(), NEW_NORMAL, "ann", END).last_day is None


def test_a_change_after_a_dismissed_false_incident_is_found_within_four_days(store: Store) -> None:
    """The dismissed incident was chance, so its scores stay in the reference."""
    put(store, "scores", history(lambda back: 0.75 if back < 5 else 0.85, 60))
    false_alarm = plain(incident_id="false", tier="tier2", direction="down", metadata=_chance(12, 12))
    put(store, "incidents", [apply_decision(false_alarm, DISMISSED, "ann", END - 12 * DAY)])
    for back in [*range(11, 6, -1), *range(5, -1, -1)]:
        check(store, END - back * DAY)
    incidents = [incident for incident in load_incidents(store) if incident.incident_id != "false"]
    assert [(incident.status, incident.direction) for incident in incidents] == [(OPEN, "down")]
    assert incidents[0].detected_at <= END - DAY


def _chance(first: int, last: int) -> str:
    rule_evidence = {"since": f"{TODAY - first * DAY}", "until": f"{TODAY - last * DAY}", "size": 0.1, "severity": "warning"}
    levels = {"meanBefore": 0.85, "meanAfter": 0.75, "sigma": 0.1}
    return json.dumps({"rules": {"sequential": rule_evidence | levels}})


def weeks(store: Store, hours: Sequence[int]) -> list[tuple[str, str | None, date | None, int]]:
    """Return the incidents of four weeks with a dip, checked at these hours of each day."""
    put(store, "scores", history(dip(16, 11), 60))
    for back in range(20, -1, -1):
        for hour in hours:
            check(store, END - back * DAY + timedelta(hours=hour))
    return [
        (
            incident.status,
            incident.resolution,
            None if incident.last_day is None else incident.last_day.date(),
            len(evidence_of(incident).moved),
        )
        for incident in load_incidents(store)
    ]


def test_the_frequency_of_checks_does_not_change_the_incidents(store: Store) -> None:
    """A server that checks every minute and a daily command must give the same result."""
    with Store(None) as other:
        assert weeks(store, [0]) == weeks(other, [-6, -1, 0])


def test_a_tier_with_too_few_sessions_for_an_alarm_is_listed_with_another_ones_incident(store: Store) -> None:
    """One noisy session per day proves nothing by itself, but is worth showing beside another tier's fall."""
    put(store, "scores", history(fallen(2), 40))
    behaved = {"tier3_state": "scored", "tier3_reason": "always"}
    for back in range(40, -1, -1):
        level = 2.6 if back < 2 else 3.6 + 0.6 * (back % 3)
        put(store, "scores", history(steady, 0, a_day=1, end=END - back * DAY, name=f"-t{back}", tier3_score=level, **behaved))
    (opened,) = check(store).opened
    entries = {series.key.tier: series for series in evidence_of(opened).moved}
    assert set(entries) == {"tier2", "tier3"}
    assert entries["tier2"].fell_too is False
    assert entries["tier3"].fell_too is True
    assert "also behavior quality" in opened.title
    level_of = entries["tier3"].level
    assert level_of is not None
    assert level_of.after < 3.5 < level_of.before
