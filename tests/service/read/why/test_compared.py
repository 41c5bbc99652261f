"""The versions that an incident compares: the one with which the change began, and the one to roll back to."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from support.incident_evidence import RULE, made, part, slices

from schemas.records import Incident
from service.cli.incident_views import incident_view
from service.read.incident_actions import NO_VALUE, IncidentFacts, format_slice_counts, format_slice_means
from service.read.why import why

OLD = part(
    "6",
    shares=(1.0, 0.5),
    meanBefore=0.9,
    meanAfter=0.88,
    exchangesBefore=271,
    exchangesAfter=22,
    explained=-0.01,
    standsOut=False,
)
CUSTOMER = part("acme", label="tenant", shares=(0.2, 0.2), meanBefore=0.9)


def printed(incident: Incident) -> str:
    """Return the output of `driftline incidents show` for an incident."""
    shown = io.StringIO()
    Console(width=300, file=shown, highlight=False, emoji=False).print(incident_view(incident, []))
    return shown.getvalue()


def compared(evidence: dict[str, Any], **fields: Any) -> list[tuple[str, str]]:
    """The values that are compared, with what each is there for."""
    return [(one.row.value, one.role) for one in IncidentFacts(made(evidence, **fields)).compared_slices]


def test_the_version_to_go_back_to_is_compared_with_the_one_that_it_began_with() -> None:
    """The version to roll back to must be listed, although it explains nothing and so is not among the best slices."""
    incident = made(slices(part("7"), OLD))
    assert "Roll back agent_version from 7 to 6" in [one.title for one in why(incident).actions]
    assert compared(slices(part("7"), OLD)) == [("7", "began with the change"), ("6", "to go back to")]
    which = IncidentFacts(incident).slice_comparison
    assert which is not None
    assert [(one.value, format_slice_counts(one), format_slice_means(one)) for one in which.listed] == [
        ("7", "0 → 25", f"{NO_VALUE} → 0.050"),
        ("6", "271 → 22", "0.900 → 0.880"),
    ]


def test_a_version_that_is_listed_already_is_not_listed_twice() -> None:
    """Two rows of one version would be read as two versions."""
    evidence = slices(part("7"), OLD)
    evidence["slices"]["slices"].append(OLD)
    which = IncidentFacts(made(evidence)).slice_comparison
    assert which is not None
    assert [one.value for one in which.listed] == ["7", "6"]


@pytest.mark.parametrize(
    ("evidence", "fields", "roles"),
    [
        (slices(part("7"), OLD), {"direction": "up"}, ["began with the change", "most exchanges before"]),
        (slices(CUSTOMER, CUSTOMER | {"value": "umbrella"}), {}, ["stands out", "most exchanges before"]),
        (slices(part("7"), OLD | {"meanBefore": None}), {}, []),
        (slices(part("7"), None), {}, []),
        (slices(part("7"), OLD, state="everywhere"), {}, []),
        ({}, {}, []),
    ],
)
def test_nothing_is_called_a_way_back_without_the_advice(
    evidence: dict[str, Any], fields: dict[str, Any], roles: list[str]
) -> None:
    """Only a worse version can be rolled back, not a customer or an improvement."""
    assert [role for _, role in compared(evidence, **fields)] == roles


RUNS = {"rule": "runs", "direction": "up", "agent": "desk"}
SPIKE = {"type": "anomaly_spike", "tier": None, "direction": "up", "rule": "rate_ratio"}


@pytest.mark.parametrize(
    ("seen", "fields", "told"),
    [
        ({}, {}, "31 scores of 25 sessions since 2026-10-28, 147 scores of 30 sessions before"),
        (
            {"havingBefore": 1, "havingAfter": 15, "runsBefore": 42, "runsAfter": 17},
            {**RUNS, "tier": "unsafe"},
            "15 of 17 runs since 2026-10-28, 1 of 42 before",
        ),
        (
            {"meanBefore": 99.7, "meanAfter": 91.5, "runsBefore": 42, "runsAfter": 1},
            {**RUNS, "tier": "trust", "direction": "down"},
            "1 run since 2026-10-28, 42 before",
        ),
        (
            {"anomalies": 220, "exchanges": 470, "baselineRate": 0.007, "baselineAnomalies": 10, "baselineExchanges": 1530},
            SPIKE,
            "220 of 470 exchanges since 2026-10-28, 10 of 1\u202f530 before",
        ),
        ({"anomalies": 22, "exchanges": 47, "baselineRate": 0.007, "baselineExchanges": 1530}, SPIKE, ""),
        ({"sessionsAfter": None}, {}, ""),
        ({}, {**RUNS, "tier": "unsafe"}, ""),
        ({}, SPIKE, ""),
    ],
)
def test_the_levels_of_a_title_have_what_they_are_of(seen: dict[str, Any], fields: dict[str, Any], told: str) -> None:
    """88 % of 17 runs and 88 % of 17 000 are not the same news. A count that the rule did not record is not worked out from its rate."""
    rule = fields.get("rule", "sequential")
    assert IncidentFacts(made({"rules": {rule: RULE | seen}}, **fields)).sample_size == told


def test_the_terminal_lists_both_versions_with_their_exchanges() -> None:
    """The terminal must show the versions as well, because no page is at hand."""
    told = printed(made(slices(part("7"), OLD)))
    assert "271 → 22" in told
    assert "agent_version: 6" in told


def test_the_terminal_says_of_the_command_of_a_rollback_that_it_only_records_it() -> None:
    """A copied command that only records a deployment must say that it does not roll back."""
    told = printed(made(slices(part("7"), OLD)))
    assert "--label agent_version  # " in told
