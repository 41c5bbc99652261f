"""Which findings are one change: same direction of badness, same days, one incident with a list of what moved."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.watch_histories import DAY, END, TODAY, finding, opened, told_of, written

from audit.drift.incident_evidence import evidence_of
from audit.drift.watched_series import CRITICAL, DOWN, DRIFT, SPIKE, SPREAD, UP, WARNING, Key
from schemas.records import Incident
from streams.watch.findings import Finding
from streams.watch.incidents import decided, due
from streams.watch.lifecycle import ACKNOWLEDGED, CONFIRMED, DISMISSED, SUSPECTED, vanished

TIERS = ("tier1", "tier2", "tier2_5", "tier3")


def fell(tier: str, since: int = 5, **changes: object) -> Finding:
    """A finding that a tier fell so many days ago."""
    return finding(since, key=Key(DRIFT, tier, DOWN), rule="sequential", title=f"{tier} fell", **changes)


def names(incident: Incident) -> list[str]:
    """What moved in it, the leading series first."""
    return [one.key.series for one in evidence_of(incident).moved]


def test_tiers_that_fell_on_the_same_days_are_one_incident_that_the_worst_confirmed_one_leads() -> None:
    """Four alarms about one outage are three too many; and what is certain goes before what is bad perhaps."""
    (made,) = written([fell("tier1"), fell("tier2", severity=CRITICAL, confirmed=False), fell("tier3", 4, severity=CRITICAL)])
    assert [names(made)[0], *sorted(names(made)[1:])] == ["tier3", "tier1", "tier2"]
    assert (made.tier, made.severity, made.confidence) == ("tier3", CRITICAL, CONFIRMED)
    assert made.title.startswith("tier3 fell; ")
    assert "Tier 1" in made.title
    assert "Tier 2" in made.title


def test_intervals_that_overlap_are_the_same_days_and_days_apart_are_not() -> None:
    """The first day is an estimate, and two estimates of one day differ."""
    wide = fell("tier3", 2, interval=(TODAY - 8 * DAY, TODAY - DAY))
    assert len(written([fell("tier2", 7), wide])) == 1
    assert len(written([fell("tier2", 7), fell("tier3", 2)])) == 2
    assert len(written([fell("tier2", 7), fell("tier3", 6)])) == 1


def test_what_got_better_and_what_got_worse_are_apart() -> None:
    """They hardly have one cause; and less trust, more failures and a wider spread are all worse."""
    rose = finding(5, key=Key(DRIFT, "tier3", UP))
    trust = finding(5, key=Key(DRIFT, "trust", DOWN, "bot"))
    unsafe = finding(5, key=Key(DRIFT, "unsafe", UP, "bot"))
    failure = finding(5, key=Key(DRIFT, "failure:infinite_tool_loop", UP, "bot"))
    spread = finding(5, key=Key(DRIFT, "tier2_5", UP), kind=SPREAD)
    spike = finding(2, key=Key(SPIKE, None, UP))
    worse, better, spikes = written([fell("tier2"), rose, trust, unsafe, failure, spread, spike])
    assert set(names(worse)) == {"tier2", "trust of bot", "unsafe of bot", "failure:infinite_tool_loop of bot", "tier2_5"}
    assert (names(better), names(spikes)) == (["tier3"], ["anomaly_spike"])


def test_a_tier_that_joins_later_joins_and_the_incident_stays_the_same() -> None:
    """Whoever has it open at the query pool goes on having it; who took it on keeps it."""
    known = decided(opened(fell("tier2")), ACKNOWLEDGED, "ann", END)
    (made,) = written([fell("tier2"), fell("tier3")], [known], END + timedelta(minutes=1))
    assert made.incident_id == known.incident_id
    assert made.revision == 2
    assert made.acknowledged_by == "ann"
    assert made.tier == "tier2"
    assert names(made) == ["tier2", "tier3"]


def test_a_tier_that_gets_worse_takes_the_lead() -> None:
    """The title says the worst that is known."""
    known = opened(fell("tier2"))
    (made,) = written([fell("tier2"), fell("tier3", severity=CRITICAL)], [known], END + timedelta(minutes=1))
    assert (made.tier, made.title) == ("tier3", "tier3 fell; Tier 2 moved too")
    assert known.incident_id == made.incident_id


def test_what_moved_along_is_listed_and_gone_when_it_is_back() -> None:
    """Too few sessions for an alarm are enough to be told beside one."""
    too = replace(fell("tier3", 5, confirmed=False, fell_too=True), rule="moved_too")
    (one,) = due([fell("tier2")], [], END, lambda _: told_of(None), lambda *_: [too])
    assert [(moved.key.tier, moved.fell_too) for moved in one.moved] == [("tier2", False), ("tier3", True)]
    assert (one.severity, one.is_confirmed) == (WARNING, True)
    (made,) = written([fell("tier2")])
    assert names(made) == ["tier2"]


def test_a_tier_of_a_dismissed_change_opens_nothing_unless_it_is_worse() -> None:
    """The same change was seen and decided on; that it reaches another tier is no news, that it is critical is."""
    known = decided(opened(fell("tier2")), DISMISSED, "ann", END)
    (taken,) = written([fell("tier2"), fell("tier3")], [known], END + timedelta(minutes=1))
    assert (taken.incident_id, taken.status, set(names(taken))) == (known.incident_id, DISMISSED, {"tier2", "tier3"})
    made = written([fell("tier2"), fell("tier3", severity=CRITICAL)], [known], END + timedelta(minutes=1))
    assert [(one.tier, one.revision, one.status) for one in made if one.status == "open"] == [("tier3", 0, "open")]


def test_what_is_suspected_is_confirmed_once_and_stays_so() -> None:
    """It wakes somebody once; that the evidence is weaker an hour later takes nothing back."""
    known = opened(fell("tier2", confirmed=False))
    assert (known.confidence, known.confirmed_at) == (SUSPECTED, None)
    later = END + timedelta(minutes=5)
    (made,) = written([fell("tier2")], [known], later)
    assert (made.confidence, made.confirmed_at, made.incident_id) == (CONFIRMED, later, known.incident_id)
    (again,) = written([fell("tier2", confirmed=False, size=9.0)], [made], END + DAY)
    assert (again.confidence, again.confirmed_at) == (CONFIRMED, later)


def test_a_suspicion_that_is_not_seen_for_two_whole_days_vanishes_and_a_confirmed_incident_does_not() -> None:
    """Chance comes and goes; what was certain once ends only by its level, or by a person."""
    suspected, confirmed = opened(fell("tier2", confirmed=False)), opened(fell("tier2"))
    assert vanished(suspected, END + 2 * DAY) is None
    gone = vanished(suspected, END + 3 * DAY)
    assert gone is not None
    assert gone.status == "resolved"
    assert gone.resolution == "vanished"
    assert gone.resolved_by == "driftline"
    assert gone.last_day is None
    assert vanished(confirmed, END + 30 * DAY) is None


@pytest.mark.parametrize(
    ("said", "cause"),
    [
        (["judge", "judge"], "judge"),
        (["judge", None], "judge"),
        (["agent", None], "agent"),
        (["agent", "judge"], None),
        ([None, None], None),
    ],
)
def test_one_incident_has_one_cause(said: Sequence[str | None], cause: str | None) -> None:
    """That of the tiers that tell it; not known where they disagree."""
    causes = dict(zip(("tier2", "tier3"), said, strict=True))
    (one,) = due([fell("tier2"), fell("tier3")], [], END, lambda found: told_of(causes[found.key.tier or ""]))
    assert one.explanation.cause == cause


def test_a_list_that_cannot_be_read_is_that_of_what_it_leads() -> None:
    """Whoever writes incidents past us can write anything."""
    known = opened(fell("tier2"))
    for odd in ("x", [1], [{}], [{"leads": True, "kind": 3}], [{"rules": {}, "tier": "tier3"}]):
        broken = msgspec.structs.replace(known, metadata=json.dumps(json.loads(known.metadata) | {"moved": odd}))
        assert names(broken) == ["tier2"]
        assert [one for one in written([fell("tier2")], [broken], END + timedelta(minutes=1)) if one.revision == 0] == []


@given(
    st.lists(
        st.tuples(st.sampled_from(TIERS), st.sampled_from([UP, DOWN]), st.integers(0, 12), st.integers(0, 3), st.booleans()),
        max_size=10,
        unique_by=lambda one: one[:2],
    )
)
def test_every_finding_is_in_one_incident_and_stays_there(found: list[tuple[str, str, int, int, bool]]) -> None:
    """No alarm is lost, none is told twice, and a check that finds the same writes nothing."""
    findings = [
        finding(since, key=Key(DRIFT, tier, way), interval=(TODAY - (since + wide) * DAY, TODAY - since * DAY), confirmed=sure)
        for tier, way, since, wide, sure in found
    ]
    made = written(findings)
    told = [one.series for incident in made for one in evidence_of(incident).moved]
    assert sorted(told) == sorted({(one.key, one.kind) for one in findings})
    for incident in made:
        assert len({one.key.is_worse for one in evidence_of(incident).moved}) == 1
    later = written(findings, made, END + timedelta(minutes=1))
    assert later == []
