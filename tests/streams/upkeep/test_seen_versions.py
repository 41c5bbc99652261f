"""Deployments seen in traces: the first exchange of each new version."""

from __future__ import annotations

from datetime import timedelta

import pytest
from support.builders import exchange
from support.clocks import NOW
from support.store_fixtures import *  # noqa: F403 - pytest finds fixtures by their names here

from analytics.store.store import Store
from audit.policy import RedactionSettings
from audit.redaction import Redactor
from schemas.codec.single_object import encode
from schemas.records import Exchange, Label
from streams.upkeep.annotations import SeenVersions


def of_version(number: int, version: str, agent: str = "cleo", label: str = "agent_version") -> Exchange:
    """Return an exchange of an agent's version; a higher number is later."""
    at = NOW - timedelta(hours=1) + timedelta(minutes=number)
    return exchange("s", number, agent=agent, labels=(Label(name=label, value=version),), occurred_at=at, ingested_at=NOW)


@pytest.fixture
def seen(store: Store) -> SeenVersions:
    """Return an object without seen versions."""
    return SeenVersions(store, Redactor(RedactionSettings()))


def test_each_version_after_the_first_is_a_deployment(seen: SeenVersions) -> None:
    """The deployment time of the first version is unknown; alternating versions, as with a canary, count once each."""
    deployments = [*seen.deployments([of_version(3, "2"), of_version(1, "1"), of_version(2, "1")], NOW)]
    later = [*seen.deployments([of_version(4, "1"), of_version(5, "2"), of_version(6, "3")], NOW)]

    assert [(deployment.version, deployment.occurred_at) for deployment in deployments] == [("2", NOW - timedelta(minutes=57))]
    assert [deployment.version for deployment in later] == ["3"]
    assert {(deployment.agent, deployment.label, deployment.deployed_by) for deployment in (*deployments, *later)} == {
        ("cleo", "agent_version", "traces")
    }


def test_agents_and_labels_have_their_own_versions(seen: SeenVersions) -> None:
    """Another agent's release does not change this agent, and a tenant is not a version."""
    exchanges = [of_version(1, "1"), of_version(2, "2", agent="iris"), of_version(3, "2", label="prompt_version")]
    exchanges += [of_version(4, "a", label="tenant"), of_version(5, "b", label="tenant")]

    assert [*seen.deployments(exchanges, NOW)] == []


def test_versions_in_the_tables_are_not_reported_again(store: Store) -> None:
    """A restart must not report all versions as new deployments."""
    with store.transaction() as transaction:
        transaction.append("exchanges", [encode(of_version(1, "1"))])
    restarted = SeenVersions(store, Redactor(RedactionSettings()))

    assert [deployment.version for deployment in restarted.deployments([of_version(2, "1"), of_version(3, "2")], NOW)] == ["2"]
