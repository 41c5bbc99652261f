"""Deployments: one record per release, and the deployments named at the start of a change."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from typing import Any

import msgspec
import pytest
from support.watch_histories import END, put

from analytics.store.store import Store
from audit.drift.incident_evidence import Numbers
from audit.drift.watched_series import Key
from audit.policy import RedactionSettings
from audit.redaction import Redactor
from schemas.errors import InputError
from schemas.records import Deployment
from streams.upkeep.annotations import deployment, deployments, find_repeated_deployment
from streams.watch.evidence import find_deployments
from streams.watch.findings import Finding, Source

REDACTOR = Redactor(RedactionSettings())


@pytest.fixture
def store() -> Iterator[Store]:
    """Return an empty store."""
    with Store(None) as opened:
        yield opened


def told(version: str = "2.0", **fields: Any) -> Deployment:
    """Return a deployment."""
    return deployment(**{"project": "ops", "version": version, "by": "ci", "now": END, "redactor": REDACTOR, **fields})


def test_a_repeated_deployment_is_one_record(store: Store) -> None:
    """A pipeline that runs twice reports twice."""
    put(store, "deployments", [told(at=END)])
    put(store, "deployments", [told(at=END, comment="again")])
    assert len(deployments(store.cursor(), "ops")) == 1


def test_without_a_time_the_current_version_is_known_and_a_rollback_is_new(store: Store) -> None:
    """A rollback is a deployment, too."""
    put(store, "deployments", [told("1", at=END - timedelta(days=2)), told("2", at=END - timedelta(days=1))])
    assert [
        row and row["version"]
        for row in (find_repeated_deployment(store, told("1")), find_repeated_deployment(store, told("2")))
    ] == [None, "2"]
    assert find_repeated_deployment(store, told("2", agent="scout")) is None
    assert find_repeated_deployment(store, told("2", label="prompt_version")) is None


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"label": "Agent"}, "label: 'Agent' is not a valid label name"),
        ({"version": " "}, "version: is blank"),
        ({"at": END + timedelta(days=2)}, "at: lies more than a day in the future"),
        ({"url": "javascript:alert(1)"}, "url: must be an http or https address"),
        ({"comment": "x" * 2001}, "comment: has 2001 characters"),
    ],
)
def test_an_invalid_field_is_named(fields: dict[str, Any], said: str) -> None:
    """The author of the pipeline must be able to find the field."""
    with pytest.raises(InputError, match=f"^{said}"):
        told(**fields)


def test_secrets_are_redacted() -> None:
    """The URL of a pipeline may contain its token."""
    deployment = told(
        comment="with AKIAIOSFODNN7EXAMPLE", url="https://example.org/?token=ghp_0123456789abcdefghijABCDEFGHIJ012345"
    )
    assert "AKIAIOSFODNN7" not in f"{msgspec.structs.asdict(deployment)}"
    assert "ghp_0123456789" not in f"{msgspec.structs.asdict(deployment)}"


def finding(interval: tuple[date, date] | None = None) -> Finding:
    """Return a drift that began about the third of October."""
    at = datetime(2026, 10, 3, tzinfo=UTC)
    return Finding(
        key=Key("drift", "tier2", "down"), rule="sequential", severity="warning", since=at.date(), until=at.date(), size=1.0,
        owner="ops", headline="", description="", numbers=Numbers(), before=(at, at), after=(at, at), expected=None, source=Source("drift_units", {}),
        interval=interval,
    )  # fmt: skip


def test_an_incident_names_the_deployments_of_its_first_days(store: Store) -> None:
    """A release of the same day may be the cause, one of the week before is not."""
    days = [datetime(2026, 10, day, 23, 59, tzinfo=UTC) for day in (1, 2, 3, 4)]
    put(store, "deployments", [told(f"{at.day}", at=at) for at in days])
    deployments = find_deployments(store.cursor(), "ops", finding((date(2026, 10, 2), date(2026, 10, 3))))
    assert [one.version for one in deployments] == ["3", "2"]
    assert [one.version for one in find_deployments(store.cursor(), "ops", finding())] == ["3"]
