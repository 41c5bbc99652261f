"""Evidence of an incident: it is read back as written, from any version, without unreadable parts."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from support.builders import incident

from audit.drift.incident_evidence import Evidence, FlagCount, Observation, build_changed_series, evidence_json, evidence_of
from audit.drift.watched_series import DOWN, DRIFT, Key, Series
from schemas.records import Incident

SEEN: dict[str, Any] = {
    "since": "2026-10-28",
    "until": "2026-11-01",
    "severity": "critical",
    "size": 0.4,
    "meanBefore": 0.9,
    "meanAfter": 0.45,
}
EXCHANGE = {"scoreId": "s", "sessionId": "t", "turnNumber": 1, "exchangeTimestamp": "2026-10-29T09:00:00Z", "score": 0.1}


def carrying(evidence: Any, **fields: Any) -> Incident:
    """Return an incident of a fall of Tier 2, with this evidence as text or JSON."""
    text = evidence if isinstance(evidence, str) else json.dumps(evidence)
    return incident(metadata=text, **{"type": DRIFT, "tier": "tier2", "direction": DOWN, "rule": "sequential", **fields})


def test_written_evidence_is_read_back() -> None:
    """The rules of the leading series are beside the list, those of other series in their entries."""
    rules = {"sequential": msgspec.convert(SEEN, Observation)}
    moved = [
        build_changed_series(
            Series(Key(DRIFT, tier, DOWN)),
            rules,
            rule="sequential",
            severity="critical",
            confirmed=True,
            interval=(rules["sequential"].since, rules["sequential"].since),
            leads=tier == "tier2",
        )
        for tier in ("tier2", "tier3")
    ]
    evidence = Evidence(note="It fell.", rules=rules, moved=moved, decided_sizes={"sequential": 0.4})
    stored = json.loads(evidence_json(evidence))
    assert ["rules" in entry for entry in stored["moved"]] == [False, True]
    assert stored["moved"][0]["from"] == 0.9
    assert stored["moved"][0]["to"] == 0.45
    assert stored["rules"] == {"sequential": SEEN}
    assert evidence == evidence_of(carrying(stored))


def test_a_record_without_a_list_has_a_list_of_one() -> None:
    """A record without a list is about its own series."""
    (moved,) = evidence_of(carrying({"rules": {"sequential": SEEN}}, severity="warning", confidence="confirmed")).moved
    assert moved.key == Key(DRIFT, "tier2", DOWN)
    assert moved.severity == "warning"
    assert moved.confirmed is True
    assert moved.leads is True
    assert moved.level is not None
    assert moved.level[:2] == (0.9, 0.45)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "7", pytest.param('"\ud800"', id="no Unicode")])
def test_invalid_metadata_gives_empty_evidence(text: str) -> None:
    """Other programs may write any metadata."""
    assert Evidence() == evidence_of(carrying(text))


def test_only_unreadable_parts_are_skipped() -> None:
    """One unreadable number, day or entry must not hide the others."""
    evidence = evidence_of(
        carrying(
            {
                "note": 7,
                "rules": {
                    "sequential": SEEN | {"sigma": "wide"},
                    "odd": {"since": "?"},
                    "late": SEEN | {"until": "2026-10-01"},
                },
                "exchanges": [{"erased": True}, EXCHANGE, 3],
                "moved": [{"leads": True}, 3],
            }
        )
    )
    assert evidence.note is None
    assert {rule: (seen.mean_before, seen.sigma) for rule, seen in evidence.rules.items()} == {"sequential": (0.9, None)}
    assert [exchange.score_id for exchange in evidence.exchanges] == ["s"]
    assert [one.tier for one in evidence.moved] == ["tier2"]


def test_an_invalid_number_is_unknown() -> None:
    """Older versions wrote NaN, which a strict reader refuses; it is left out when read."""
    text = json.dumps({"rules": {"sequential": SEEN | {"sigma": float("nan")}}})
    evidence = evidence_of(carrying(text))
    assert evidence.rules["sequential"].sigma is None
    assert evidence_of(carrying(evidence_json(evidence))) == evidence


@pytest.mark.parametrize(
    ("counts", "rises", "falls"),
    [((2, 100, 30, 100), True, False), ((2, 100, 4, 100), False, False), ((30, 100, 2, 100), False, True), ((0, 0, 9, 9), False, False), ((9, 3, 9, 3), False, False)],
)  # fmt: skip
def test_a_share_has_risen_if_chance_does_not_explain_it(counts: tuple[int, int, int, int], rises: bool, falls: bool) -> None:
    """Fewer than three, a missing time before, and counts above their total are never significant."""
    before, all_before, after, all_after = counts
    count = FlagCount(flag="silent_refusal", before=before, all_before=all_before, after=after, all_after=all_after)
    assert count.has_risen() == rises
    assert count.has_risen(is_fall=True) == falls
