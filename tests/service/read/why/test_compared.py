"""The slices that an incident compares: the version that changed the mean, and the version to roll back to."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console
from support.clocks import NOW
from support.incident_evidence import RULE, build_incident, build_slice, slice_evidence

from schemas.records import Incident
from service.cli.incident_views import incident_view
from service.read.incident_actions import NO_VALUE, IncidentFacts, format_slice_counts, format_slice_means
from service.read.why import why

PREVIOUS_VERSION = build_slice(
    "6",
    shares=(1.0, 0.5),
    meanBefore=0.9,
    meanAfter=0.88,
    exchangesBefore=271,
    exchangesAfter=22,
    explained=-0.01,
    standsOut=False,
)
CUSTOMER = build_slice("acme", label="tenant", shares=(0.2, 0.2), meanBefore=0.9)


def print_incident(incident: Incident) -> str:
    """Return the output of `driftline incidents show` for an incident."""
    output = io.StringIO()
    Console(width=300, file=output, highlight=False, emoji=False).print(incident_view(incident, [], NOW))
    return output.getvalue()


def compare_slices(evidence: dict[str, Any], **fields: Any) -> list[tuple[str, str]]:
    """Return the compared slices of an incident, each as its value and its role in the comparison."""
    facts = IncidentFacts(build_incident(evidence, **fields))
    return [(compared.row.value, compared.role) for compared in facts.compared_slices]


def test_the_previous_version_is_compared_with_the_new_one() -> None:
    """A rollback is advised, so its target must be listed, although it is not among the slices that explain the change."""
    incident = build_incident(slice_evidence(build_slice("7"), PREVIOUS_VERSION))
    assert "Roll back agent_version from 7 to 6" in [action.title for action in why(incident).actions]
    assert compare_slices(slice_evidence(build_slice("7"), PREVIOUS_VERSION)) == [
        ("7", "began with the change"),
        ("6", "previous version"),
    ]
    comparison = IncidentFacts(incident).slice_comparison
    assert comparison is not None
    assert [(row.value, format_slice_counts(row), format_slice_means(row)) for row in comparison.listed] == [
        ("7", "0 → 25", f"{NO_VALUE} → 0.050"),
        ("6", "271 → 22", "0.900 → 0.880"),
    ]


def test_a_version_is_listed_once() -> None:
    """If the previous version also explains the change, two rows of it would look like two versions."""
    evidence = slice_evidence(build_slice("7"), PREVIOUS_VERSION)
    evidence["slices"]["slices"].append(PREVIOUS_VERSION)
    comparison = IncidentFacts(build_incident(evidence)).slice_comparison
    assert comparison is not None
    assert [row.value for row in comparison.listed] == ["7", "6"]


@pytest.mark.parametrize(
    ("evidence", "fields", "roles"),
    [
        (
            slice_evidence(build_slice("7"), PREVIOUS_VERSION),
            {"direction": "up"},
            ["began with the change", "most exchanges before"],
        ),
        (slice_evidence(CUSTOMER, CUSTOMER | {"value": "umbrella"}), {}, ["stands out", "most exchanges before"]),
        (slice_evidence(build_slice("7"), PREVIOUS_VERSION | {"meanBefore": None}), {}, []),
        (slice_evidence(build_slice("7"), None), {}, []),
        (slice_evidence(build_slice("7"), PREVIOUS_VERSION, state="everywhere"), {}, []),
        ({}, {}, []),
    ],
)
def test_only_a_slice_that_can_be_rolled_back_to_is_called_so(
    evidence: dict[str, Any], fields: dict[str, Any], roles: list[str]
) -> None:
    """Nobody rolls back an improvement or a customer, and a version without scores is no target."""
    assert [role for _, role in compare_slices(evidence, **fields)] == roles


RUN_SHARE_RISE = {"rule": "runs", "direction": "up", "agent": "desk"}
ANOMALY_SPIKE = {"type": "anomaly_spike", "tier": None, "direction": "up", "rule": "rate_ratio"}


@pytest.mark.parametrize(
    ("rule_fields", "fields", "sample_size"),
    [
        ({}, {}, "31 scores of 25 sessions since 2026-10-28, 147 scores of 30 sessions before"),
        (
            {"havingBefore": 1, "havingAfter": 15, "runsBefore": 42, "runsAfter": 17},
            {**RUN_SHARE_RISE, "tier": "unsafe"},
            "15 of 17 runs since 2026-10-28, 1 of 42 before",
        ),
        (
            {"meanBefore": 99.7, "meanAfter": 91.5, "runsBefore": 42, "runsAfter": 1},
            {**RUN_SHARE_RISE, "tier": "trust", "direction": "down"},
            "1 run since 2026-10-28, 42 before",
        ),
        (
            {"anomalies": 220, "exchanges": 470, "baselineRate": 0.007, "baselineAnomalies": 10, "baselineExchanges": 1530},
            ANOMALY_SPIKE,
            "220 of 470 exchanges since 2026-10-28, 10 of 1,530 before",
        ),
        ({"anomalies": 22, "exchanges": 47, "baselineRate": 0.007, "baselineExchanges": 1530}, ANOMALY_SPIKE, ""),
        ({"sessionsAfter": None}, {}, ""),
        ({}, {**RUN_SHARE_RISE, "tier": "unsafe"}, ""),
        ({}, ANOMALY_SPIKE, ""),
    ],
)
def test_the_levels_of_a_title_have_their_sample_size(
    rule_fields: dict[str, Any], fields: dict[str, Any], sample_size: str
) -> None:
    """88% of 17 runs is weaker evidence than 88% of 17 000. If the rule recorded no count, none is computed from its rate."""
    rule = fields.get("rule", "sequential")
    assert IncidentFacts(build_incident({"rules": {rule: RULE | rule_fields}}, **fields)).sample_size == sample_size


def test_the_terminal_lists_both_versions_with_their_exchanges() -> None:
    """A user of the terminal may have no access to the page."""
    output = print_incident(build_incident(slice_evidence(build_slice("7"), PREVIOUS_VERSION)))
    assert "271 → 22" in output
    assert "agent_version: 6" in output


def test_the_command_of_a_rollback_has_a_comment() -> None:
    """The command only records a deployment, so a comment must say that it rolls nothing back."""
    output = print_incident(build_incident(slice_evidence(build_slice("7"), PREVIOUS_VERSION)))
    assert "--label agent_version  # " in output
