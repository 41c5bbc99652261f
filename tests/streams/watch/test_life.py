"""The life of an incident: who has it, what ends it, and what each end leaves of the reference."""

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
from streams.watch.checking import Checked
from streams.watch.incidents import decided, references_of
from streams.watch.lifecycle import (
    ACKNOWLEDGED,
    DECISIONS,
    DISMISSED,
    NEW_NORMAL,
    OPEN,
    RESOLVED,
    DayLevel,
    back_since,
    current,
    is_live,
    recovered_since,
    shows,
    with_decision,
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
    """A watch that knows nothing but the store, at a moment."""
    return Watch(StorePublisher(store, Policy(), lambda: at))


def check(store: Store, at: datetime = END) -> Checked:
    """The check of the project."""
    (one,) = asyncio.run(watch(store, at).check(["ops"]))
    return one


def decide(store: Store, incident: Incident, decision: str, at: datetime, who: str = "ann") -> Incident:
    """A person's decision."""
    made = asyncio.run(watch(store, at).decide("ops", incident.incident_id, decision, who))
    assert made is not None
    return made


def known(store: Store) -> list[Incident]:
    """The incidents of the project, oldest first."""
    return list(query_records(store.cursor(), "watched_incidents", Incident, {"projects": ["ops"]}))


def dip(first: int, last: int, to: float = 0.45) -> Callable[[int], float]:
    """A quality that is low from so many days before the end to so many."""
    return lambda back: to if last <= back <= first else 0.85


def plain(**changes: object) -> Incident:
    """An incident of which nothing is known but that it is open."""
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


def test_what_has_recovered_resolves_itself_and_its_days_are_cut_out(store: Store) -> None:
    """Nobody has to clear up after an outage that was mended, and what is normal stays what it was."""
    put(store, "scores", history(dip(16, 11), 60))
    check(store, END - 10 * DAY)
    for back in range(9, -1, -1):
        check(store, END - back * DAY)
    (one,) = known(store)
    assert one.status == RESOLVED
    assert one.resolution == "recovered"
    assert one.resolved_by == "driftline"
    assert one.severity == "critical"
    assert one.last_day is not None
    assert one.last_day.date() == TODAY - 11 * DAY
    assert one.resolved_at == END - 8 * DAY
    assert references_of([one]) == {"tier2": Reference(cut=((TODAY - 16 * DAY, TODAY - 11 * DAY),))}


def test_what_was_over_before_it_was_found_is_resolved_by_the_same_check(store: Store) -> None:
    """An import of last month's records is checked once: what had recovered in it would stay open, and red, for ever."""
    put(store, "scores", history(dip(16, 11), 60))
    found = check(store)
    (one,) = known(store)
    assert one.revision == 1
    assert one.status == RESOLVED
    assert one.resolution == "recovered"
    assert recovered_since(one) == TODAY - 10 * DAY
    assert [opened.incident_id for opened in found.opened] == [one.incident_id]
    assert query_rows(store.cursor(), "untold_incidents", {"since": END - 90 * DAY}) == []


def test_a_spike_is_open_until_it_is_over_by_its_rate(store: Store) -> None:
    """After two weeks the rule falls silent, which is no news that it is better."""
    put(store, "scores", history(steady, 60))
    put(store, "scores", history(steady, 20, end=END - 4 * DAY, name="-odd", anomaly=True, anomaly_reasons=("odd",)))
    seen = []
    for back in range(25, -1, -1):
        check(store, END - back * DAY)
        seen.append([(one.status, one.resolution) for one in known(store) if one.type == "anomaly_spike"])
    told = [list(group) for group, _ in itertools.groupby(seen)]
    assert told == [[], [("open", None)], [(RESOLVED, "recovered")]]
    assert 2 + 20 <= seen.count([("open", None)]) <= 2 + 22
    (spike,) = (one for one in known(store) if one.type == "anomaly_spike")
    assert spike.last_day is not None
    assert spike.last_day.date() == (END - 4 * DAY).date()


def test_the_way_back_is_no_rise(store: Store) -> None:
    """A tier that returns to normal has not got better."""
    put(store, "scores", history(dip(20, 9, to=0.6), 60, a_day=30))
    for back in range(12, -1, -1):
        check(store, END - back * DAY)
    assert [(one.direction, one.resolution) for one in known(store)] == [("down", "recovered")]


@pytest.mark.parametrize("decision", [ACKNOWLEDGED, OPEN])
def test_what_goes_on_stays_red_and_changes_no_reference(store: Store, decision: str) -> None:
    """A name beside it mends nothing: it is as low as it was, and it stays one incident."""
    put(store, "scores", history(fallen(20), 60))
    (made,) = check(store, END - 16 * DAY).opened
    decide(store, made, decision, END - 15 * DAY)
    for back in range(14, -1, -1):
        check(store, END - back * DAY)
    (one,) = known(store)
    assert is_live(one)
    assert references_of([one]) == {}
    assert one.acknowledged_by == ("ann" if decision == ACKNOWLEDGED else None)


def test_somebody_else_may_take_it_over(store: Store) -> None:
    """A shift ends, and the next one has it."""
    put(store, "scores", history(fallen(6), 40))
    (made,) = check(store).opened
    decide(store, made, ACKNOWLEDGED, END)
    assert decide(store, made, ACKNOWLEDGED, END + DAY, "bob").acknowledged_by == "bob"
    assert [row[0] for row in store.cursor().execute("SELECT reviewer FROM reviews ORDER BY occurred_at").fetchall()] == [
        "ann",
        "bob",
    ]


def test_what_was_said_to_be_fixed_and_goes_on_is_found_again(store: Store) -> None:
    """A fix that did not work must not hide what it was for."""
    put(store, "scores", history(fallen(20), 60))
    (made,) = check(store, END - 16 * DAY).opened
    one = decide(store, made, RESOLVED, END - 15 * DAY)
    assert one.resolution == "fixed"
    assert one.resolved_by == "ann"
    for back in range(14, -1, -1):
        check(store, END - back * DAY)
    first, second = known(store)
    assert first.status == RESOLVED
    assert second.status == OPEN
    assert second.detected_at <= END - 10 * DAY


def test_the_new_normal_is_what_is_compared_with(store: Store) -> None:
    """The change was wanted: it is not told again, and what changes from there is."""
    put(store, "scores", history(lambda back: 0.2 if back < 4 else 0.5 if back < 30 else 0.85, 70))
    (made,) = check(store, END - 26 * DAY).opened
    decide(store, made, NEW_NORMAL, END - 25 * DAY)
    for back in range(24, -1, -1):
        check(store, END - back * DAY)
    first, second = known(store)
    assert first.status == RESOLVED
    assert first.resolution == "new_normal"
    assert second.status == OPEN
    assert second.detected_at >= END - 4 * DAY


@pytest.mark.parametrize(("decision", "gap"), [(DISMISSED, 12), (DISMISSED, 20), (RESOLVED, 16), (ACKNOWLEDGED, 12)])
def test_a_change_after_a_dip_that_was_decided_on_is_found_within_four_days(store: Store, decision: str, gap: int) -> None:
    """One decision must not blind the project: two weeks without a reference was what it cost before."""
    fell = 5
    quality: Callable[[int], float] = lambda back: 0.75 if back < fell else dip(fell + gap + 6, fell + gap)(back)  # noqa: E731
    put(store, "scores", history(quality, 80, seed=gap))
    (made,) = check(store, END - (fell + gap + 2) * DAY).opened
    decide(store, made, decision, END - (fell + gap + 1) * DAY)
    for back in [*range(fell + gap, fell + gap - 5, -1), *range(fell, -1, -1)]:
        check(store, END - back * DAY)
    # What was said to be fixed before it was may have been found again, and have recovered since.
    later = [one for one in known(store) if one.incident_id != made.incident_id and one.resolution is None]
    assert [(one.status, one.direction) for one in later] == [(OPEN, "down")]
    assert later[0].detected_at > END - fell * DAY


def test_opened_again_is_not_resolved_by_what_was_known_then(store: Store) -> None:
    """Somebody who opens it again has seen those days, and thinks otherwise."""
    put(store, "scores", history(dip(12, 6), 60))
    check(store, END - 6 * DAY)
    for back in range(5, 0, -1):
        check(store, END - back * DAY)
    (one,) = known(store)
    assert one.resolution == "recovered"
    decide(store, one, OPEN, END - DAY)
    check(store, END)
    assert known(store)[0].status == OPEN
    put(store, "scores", history(steady, 3, end=END + 3 * DAY, name="-later"))
    check(store, END + 3 * DAY)
    assert known(store)[0].status == RESOLVED


def test_a_check_that_looks_back_ends_nothing(store: Store) -> None:
    """`check-drift --as-of` says how it was then; it does not undo what was seen since."""
    put(store, "scores", history(dip(12, 6), 60))
    (made,) = check(store, END - 7 * DAY).opened
    decide(store, made, OPEN, END - 7 * DAY)
    check(store, END - 20 * DAY)
    assert is_live(known(store)[0])


@given(
    st.lists(st.tuples(st.floats(-0.05, 0.05), st.integers(1, 50)), min_size=2, max_size=14),
    st.sampled_from([1, -1]),
)
def test_days_that_are_back_end_a_change_and_days_that_are_not_do_not(days: list[tuple[float, int]], sign: int) -> None:
    """Whichever way it went: back is the side of the line halfway on which it was before."""
    level = Level(0.5, 0.5 - sign * 0.4, 0.05)
    levels = [(level.before, True), (level.after, False)]
    for at, is_back in levels:
        found = [DayLevel(TODAY - number * DAY, at + noise, units) for number, (noise, units) in enumerate(days, start=1)]
        first = back_since(found, level, TODAY - 30 * DAY, TODAY)
        assert (found[-1].day if is_back else None) == first


def test_one_day_back_and_today_are_not_enough() -> None:
    """A Sunday is no recovery, and half a day is not a day."""
    back = [DayLevel(TODAY - DAY, 0.85, 50), DayLevel(TODAY, 0.85, 50)]
    low = [DayLevel(TODAY - 2 * DAY, 0.45, 50)]
    assert back_since([*low, *back], FALL, TODAY - 9 * DAY, TODAY) is None
    assert back_since([*low, *back], FALL, TODAY - 9 * DAY, TODAY + DAY) == TODAY - DAY


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), max_size=8))
def test_cut_spans_hold_every_day_that_they_are_made_of_and_no_other(spans: list[tuple[int, int]]) -> None:
    """A day between two dips goes on saying what is normal."""
    given_spans = [(TODAY + first * DAY, TODAY + (first + length) * DAY) for first, length in spans]
    reference = Reference(cut=merge_spans(given_spans))
    for number in range(60):
        day = TODAY + number * DAY
        assert reference.counts(day) is not any(first <= day <= last for first, last in given_spans)
    assert list(reference.cut) == sorted(reference.cut)
    assert all(one[1] + DAY < other[0] for one, other in zip(reference.cut, reference.cut[1:], strict=False))


@given(st.lists(st.tuples(st.sampled_from(DECISIONS), st.sampled_from(["ann", "bob"])), max_size=8))
def test_the_last_decision_counts_and_says_who(steps: Sequence[tuple[str, str]]) -> None:
    """Whatever was decided before it, in whichever order."""
    one = plain()
    for number, (decision, who) in enumerate(steps, start=1):
        one = decided(one, decision, who, END + number * DAY)
        assert shows(one, decision)
        assert one.revision == number
        assert one.decided_at == END + number * DAY
        assert is_live(one) is (decision in {OPEN, ACKNOWLEDGED})
        assert ((None, None) if is_live(one) else (who, END + number * DAY)) == (one.resolved_by, one.resolved_at)
        assert decision != ACKNOWLEDGED or one.acknowledged_by == who
        assert decision != OPEN or (one.acknowledged_by, one.last_day, one.resolution) == (None, None, None)


def test_accepted_is_the_new_normal() -> None:
    """It moved the reference, so that is what it is called now."""
    old = plain(status="accepted", resolved_at=END, resolved_by="ann")
    assert current(old).status == RESOLVED
    assert current(old).resolution == "new_normal"
    assert current(old).resolved_by == "ann"
    assert plain() == current(plain())
    assert shows(current(old), NEW_NORMAL)
    assert with_decision(plain(), NEW_NORMAL, "ann", END).last_day is None


def test_a_change_a_week_after_a_false_incident_was_dismissed_is_found_within_four_days(store: Store) -> None:
    """Chance made the incident, a person said so, and the scores it was about go on saying what is normal."""
    put(store, "scores", history(lambda back: 0.75 if back < 5 else 0.85, 60))
    (false,) = (one for one in [plain(incident_id="false", tier="tier2", direction="down", metadata=_chance(12, 12))])
    put(store, "incidents", [decided(false, DISMISSED, "ann", END - 12 * DAY)])
    for back in [*range(11, 6, -1), *range(5, -1, -1)]:
        check(store, END - back * DAY)
    found = [one for one in known(store) if one.incident_id != "false"]
    assert [(one.status, one.direction) for one in found] == [(OPEN, "down")]
    assert found[0].detected_at <= END - DAY


def _chance(first: int, last: int) -> str:
    seen = {"since": f"{TODAY - first * DAY}", "until": f"{TODAY - last * DAY}", "size": 0.1, "severity": "warning"}
    levels = {"meanBefore": 0.85, "meanAfter": 0.75, "sigma": 0.1}
    return json.dumps({"rules": {"sequential": seen | levels}})


def weeks(store: Store, hours: Sequence[int]) -> list[tuple[str, str | None, date | None, int]]:
    """The incidents of four weeks with a dip in them, checked at these hours of each day."""
    put(store, "scores", history(dip(16, 11), 60))
    for back in range(20, -1, -1):
        for hour in hours:
            check(store, END - back * DAY + timedelta(hours=hour))
    return [
        (one.status, one.resolution, None if one.last_day is None else one.last_day.date(), len(evidence_of(one).moved))
        for one in known(store)
    ]


def test_how_often_a_day_is_looked_at_changes_nothing(store: Store) -> None:
    """A server that checks every minute and a command that is called once a day tell the same."""
    with Store(None) as other:
        assert weeks(store, [0]) == weeks(other, [-6, -1, 0])


def test_a_tier_with_too_few_sessions_for_an_alarm_is_listed_as_fallen_too(store: Store) -> None:
    """One noisy session a day has nothing to say on the second day, but beside an alarm it is worth knowing that it went along."""
    put(store, "scores", history(fallen(2), 40))
    behaved = {"tier3_state": "scored", "tier3_reason": "always"}
    for back in range(40, -1, -1):
        level = 2.6 if back < 2 else 3.6 + 0.6 * (back % 3)
        put(store, "scores", history(steady, 0, a_day=1, end=END - back * DAY, name=f"-t{back}", tier3_score=level, **behaved))
    (made,) = check(store).opened
    entries = {one.key.tier: one for one in evidence_of(made).moved}
    assert set(entries) == {"tier2", "tier3"}
    assert entries["tier2"].fell_too is False
    assert entries["tier3"].fell_too is True
    assert "Tier 3" in made.title
    level_of = entries["tier3"].level
    assert level_of is not None
    assert level_of.after < 3.5 < level_of.before
