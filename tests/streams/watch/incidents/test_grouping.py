"""Findings are grouped into incidents: series that changed for the worse (or better) on the same days are one incident."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.watch_histories import DAY, END, TODAY, check, explanation, finding, opened

from audit.drift.incident_evidence import evidence_of
from audit.drift.watched_series import CRITICAL, DOWN, DRIFT, SPIKE, SPREAD, UP, WARNING, Key
from schemas.records import Incident
from streams.watch.findings import Finding
from streams.watch.incidents import apply_decision, plan_updates
from streams.watch.lifecycle import ACKNOWLEDGED, CONFIRMED, DISMISSED, SUSPECTED, end_if_vanished

TIERS = ("tier1", "tier2", "tier2_5", "tier3")


def fell(tier: str, days_ago: int = 5, **changes: object) -> Finding:
    """Return a finding that a tier fell this many days ago."""
    return finding(started_days_ago=days_ago, key=Key(DRIFT, tier, DOWN), rule="sequential", headline=f"{tier} fell", **changes)


def names(incident: Incident) -> list[str]:
    """Return the names of the series that moved, the leading one first."""
    return [moved.key.series for moved in evidence_of(incident).moved]


def test_tiers_that_fell_on_the_same_days_are_one_incident_led_by_the_worst_confirmed_one() -> None:
    """One outage is one alert, led by a confirmed finding rather than by a severe one that is only suspected."""
    (incident,) = check([fell("tier1"), fell("tier2", severity=CRITICAL, confirmed=False), fell("tier3", 4, severity=CRITICAL)])
    assert [names(incident)[0], *sorted(names(incident)[1:])] == ["tier3", "tier1", "tier2"]
    assert incident.tier == "tier3"
    assert incident.severity == CRITICAL
    assert incident.confidence == CONFIRMED
    assert incident.title.startswith("ops: tier3 fell since ")
    assert incident.title.endswith("; also answer structure and answer quality")


def test_overlapping_intervals_are_the_same_days_and_separate_ones_are_not() -> None:
    """The first day of a change is an estimate, and two estimates of the same day may differ."""
    overlapping = fell("tier3", 2, interval=(TODAY - 8 * DAY, TODAY - DAY))
    assert len(check([fell("tier2", 7), overlapping])) == 1
    assert len(check([fell("tier2", 7), fell("tier3", 2)])) == 2
    assert len(check([fell("tier2", 7), fell("tier3", 6)])) == 1


def test_improvements_and_declines_are_separate() -> None:
    """They rarely share a cause. Less trust, more failures and a wider spread are all changes for the worse."""
    rose = finding(started_days_ago=5, key=Key(DRIFT, "tier3", UP))
    trust = finding(started_days_ago=5, key=Key(DRIFT, "trust", DOWN, "bot"))
    unsafe = finding(started_days_ago=5, key=Key(DRIFT, "unsafe", UP, "bot"))
    failure = finding(started_days_ago=5, key=Key(DRIFT, "failure:infinite_tool_loop", UP, "bot"))
    spread = finding(started_days_ago=5, key=Key(DRIFT, "tier2_5", UP), kind=SPREAD)
    spike = finding(started_days_ago=2, key=Key(SPIKE, None, UP))
    same_days_spike = finding(started_days_ago=5, key=Key(SPIKE, None, UP))
    worse, better, spikes = check([fell("tier2"), rose, trust, unsafe, failure, spread, spike])
    assert set(names(worse)) == {"tier2", "trust of bot", "unsafe of bot", "failure:infinite_tool_loop of bot", "tier2_5"}
    assert names(better) == ["tier3"]
    assert names(spikes) == ["anomaly_spike"]
    assert set(names(opened(fell("tier2"), same_days_spike))) == {"tier2", "anomaly_spike"}


def test_a_spike_that_opened_an_incident_alone_is_led_by_the_tier_that_explains_it() -> None:
    """Anomalies are counted on every exchange and may be noticed first; the fall of the same days is the same incident."""
    spike = finding(started_days_ago=5, key=Key(SPIKE, None, UP))
    stored = opened(spike)
    (revision,) = check([spike, fell("tier2", severity=CRITICAL)], [stored], END + timedelta(minutes=1))
    assert revision.incident_id == stored.incident_id
    assert (revision.type, revision.tier, revision.direction) == (DRIFT, "tier2", DOWN)
    assert names(revision) == ["tier2", "anomaly_spike"]


def test_agents_that_share_a_version_or_a_tool_are_one_incident_within_a_week() -> None:
    """A version reaches one agent after another, and each would alert; what fell in another week has another cause."""

    def found(days_ago: int, tier: str, agent: str, direction: str, part: str | None = None) -> Finding:
        return finding(started_days_ago=days_ago, key=Key(DRIFT, tier, direction, agent, part))

    version, errors = "agent_version 7", "behaviour:tool_errors:search"
    assert len(check([found(9, "tier2", "a", DOWN, version), found(4, "tier2", "b", DOWN, version)])) == 1
    assert len(check([found(9, errors, "a", UP), found(4, errors, "b", UP)])) == 1
    assert len(check([found(14, "tier2", "a", DOWN, version), found(4, "tier2", "b", DOWN, version)])) == 2
    assert len(check([found(9, "tier2", "a", DOWN, version), found(4, "tier2", "b", DOWN, "agent_version 8")])) == 2
    assert len(check([found(9, errors, "a", UP), found(4, f"{errors}es", "b", UP)])) == 2
    assert len(check([found(9, errors, "a", UP), found(4, errors, "b", DOWN)])) == 2


@pytest.mark.parametrize("direction", [DOWN, UP])
def test_a_narrower_spread_is_neither_better_nor_worse_and_joins_either(direction: str) -> None:
    """The weakest sessions may have improved or the best become worse, so it must not tie a fall to a rise, nor look for one."""
    narrower = finding(started_days_ago=6, key=Key(DRIFT, "tier2_5", DOWN), kind=SPREAD)
    changed = finding(started_days_ago=5, key=Key(DRIFT, "tier2", direction))
    opposite = finding(started_days_ago=5, key=Key(DRIFT, "tier3", UP if direction == DOWN else DOWN))
    joined, apart = check([narrower, changed, opposite])
    assert set(names(joined)) == {"tier2_5", "tier2"}
    assert names(apart) == ["tier3"]
    (alone,) = plan_updates([narrower], [], END, lambda _: explanation(None), lambda *_: [changed])
    assert [series.is_worse for series in alone.changed_series] == [None]


def test_a_tier_that_falls_later_joins_the_same_incident() -> None:
    """The link to the incident stays valid, and so does its acknowledgement."""
    stored = apply_decision(opened(fell("tier2")), ACKNOWLEDGED, "ann", END)
    (revision,) = check([fell("tier2"), fell("tier3")], [stored], END + timedelta(minutes=1))
    assert revision.incident_id == stored.incident_id
    assert revision.revision == 2
    assert revision.acknowledged_by == "ann"
    assert revision.tier == "tier2"
    assert names(revision) == ["tier2", "tier3"]


def test_a_tier_that_gets_worse_takes_the_lead() -> None:
    """The title names the worst series so far."""
    stored = opened(fell("tier2"))
    (revision,) = check([fell("tier2"), fell("tier3", severity=CRITICAL)], [stored], END + timedelta(minutes=1))
    assert revision.tier == "tier3"
    assert revision.title.startswith("ops: tier3 fell since ")
    assert revision.title.endswith("; also answer quality")
    assert stored.incident_id == revision.incident_id


def test_a_series_that_also_changed_is_listed_with_the_leading_one() -> None:
    """A series with too few sessions for its own alarm is listed beside another one's."""
    also_changed = replace(fell("tier3", 5, confirmed=False, fell_too=True), rule="moved_too")
    (change,) = plan_updates([fell("tier2")], [], END, lambda _: explanation(None), lambda *_: [also_changed])
    assert [(series.key.tier, series.fell_too) for series in change.changed_series] == [("tier2", False), ("tier3", True)]
    assert change.severity == WARNING
    assert change.is_confirmed is True


def test_another_tier_of_a_dismissed_change_opens_an_incident_only_if_it_is_worse() -> None:
    """The change was decided on. Reaching another tier is not news, but becoming critical is."""
    stored = apply_decision(opened(fell("tier2")), DISMISSED, "ann", END)
    (continued,) = check([fell("tier2"), fell("tier3")], [stored], END + timedelta(minutes=1))
    assert continued.incident_id == stored.incident_id
    assert continued.status == DISMISSED
    assert set(names(continued)) == {"tier2", "tier3"}
    incidents = check([fell("tier2"), fell("tier3", severity=CRITICAL)], [stored], END + timedelta(minutes=1))
    assert [(incident.tier, incident.revision, incident.status) for incident in incidents if incident.status == "open"] == [
        ("tier3", 0, "open")
    ]


def test_a_suspicion_is_confirmed_once_and_stays_confirmed() -> None:
    """Confirmation alerts once, and weaker evidence an hour later does not withdraw it."""
    stored = opened(fell("tier2", confirmed=False))
    assert stored.confidence == SUSPECTED
    assert stored.confirmed_at is None
    later = END + timedelta(minutes=5)
    (revision,) = check([fell("tier2")], [stored], later)
    assert revision.confidence == CONFIRMED
    assert revision.confirmed_at == later
    assert revision.incident_id == stored.incident_id
    (weaker,) = check([fell("tier2", confirmed=False, size=9.0)], [revision], END + DAY)
    assert weaker.confidence == CONFIRMED
    assert weaker.confirmed_at == later


def test_a_suspicion_unseen_for_two_days_is_withdrawn_and_a_confirmed_incident_is_not() -> None:
    """A suspicion may be chance; a confirmed incident only ends by its level or by a person."""
    suspected, confirmed = opened(fell("tier2", confirmed=False)), opened(fell("tier2"))
    assert end_if_vanished(suspected, END + 2 * DAY) is None
    resolved = end_if_vanished(suspected, END + 3 * DAY)
    assert resolved is not None
    assert resolved.status == "resolved"
    assert resolved.resolution == "vanished"
    assert resolved.resolved_by == "driftline"
    assert resolved.last_day is None
    assert end_if_vanished(confirmed, END + 30 * DAY) is None


@pytest.mark.parametrize(
    ("causes_of_tiers", "cause"),
    [
        (["judge", "judge"], "judge"),
        (["judge", None], "judge"),
        (["agent", None], "agent"),
        (["agent", "judge"], None),
        ([None, None], None),
    ],
)
def test_one_incident_has_one_cause(causes_of_tiers: Sequence[str | None], cause: str | None) -> None:
    """The cause is that of the tiers that have one, or unknown if they disagree."""
    causes = dict(zip(("tier2", "tier3"), causes_of_tiers, strict=True))
    (change,) = plan_updates(
        [fell("tier2"), fell("tier3")], [], END, lambda finding: explanation(causes[finding.key.tier or ""])
    )
    assert change.explanation.cause == cause


def test_an_unreadable_list_of_series_has_only_the_leading_one() -> None:
    """Other programs may write incidents with any metadata."""
    stored = opened(fell("tier2"))
    for unreadable in ("x", [1], [{}], [{"leads": True, "kind": 3}], [{"rules": {}, "tier": "tier3"}]):
        broken = msgspec.structs.replace(stored, metadata=json.dumps(json.loads(stored.metadata) | {"moved": unreadable}))
        assert names(broken) == ["tier2"]
        assert [
            incident for incident in check([fell("tier2")], [broken], END + timedelta(minutes=1)) if incident.revision == 0
        ] == []


@given(
    st.lists(
        st.tuples(st.sampled_from(TIERS), st.sampled_from([UP, DOWN]), st.integers(0, 12), st.integers(0, 3), st.booleans()),
        max_size=10,
        unique_by=lambda moved: moved[:2],
    )
)
def test_every_finding_is_in_exactly_one_incident_and_stays_there(
    drawn_findings: list[tuple[str, str, int, int, bool]],
) -> None:
    """Every finding is in exactly one incident, and a check with the same findings writes nothing."""
    findings = [
        finding(
            started_days_ago=days_ago,
            key=Key(DRIFT, tier, direction),
            interval=(TODAY - (days_ago + doubt) * DAY, TODAY - days_ago * DAY),
            confirmed=confirmed,
        )
        for tier, direction, days_ago, doubt, confirmed in drawn_findings
    ]
    incidents = check(findings)
    listed_series = [moved.series for incident in incidents for moved in evidence_of(incident).moved]
    assert sorted(listed_series) == sorted({(moved.key, moved.kind) for moved in findings})
    for incident in incidents:
        assert len({moved.key.is_worse for moved in evidence_of(incident).moved}) == 1
    later = check(findings, incidents, END + timedelta(minutes=1))
    assert later == []
