"""A framework that says its own version where the service's belongs: its upgrade is no deployment of the agent."""

from __future__ import annotations

from typing import Any

import pytest
from support.otlp_captures import Captured, Json, assembled, records_of
from support.otlp_spans import agent, attributes


def request(resource: dict[str, Any], scope: Json, **fields: Any) -> Captured:
    """A request of one agent's turn."""
    scoped = [{"scope": scope, "spans": [agent(0, **fields)]}]
    return Captured("traces", {"resourceSpans": [{"resource": {"attributes": attributes(resource)}, "scopeSpans": scoped}]})


def version_of(*sent: Captured) -> str | None:
    """The version that the exchange of some requests is labelled with."""
    [assembly] = assembled(records_of(sent))
    [exchange] = assembly.exchanges
    return next((label.value for label in exchange.labels if label.name == "agent_version"), None)


OWN = [
    pytest.param({"service.name": "strands-agents", "service.version": "1.62.1"}, {"name": "strands-agents"}, id="strands"),
    pytest.param(
        {"service.name": "bakery", "service.version": "1.62.1"}, {"name": "strands.telemetry.tracer"}, id="strands-named"
    ),
    pytest.param(
        {"service.name": "bakery", "service.version": "1.23.0"},
        {"name": "agent_framework", "version": "1.23.0"},
        id="agent-framework",
    ),
    pytest.param(
        {"service.name": "bakery", "service.version": "1.71.2", "telemetry.sdk.name": "@mastra/otel-exporter"},
        {"name": "@mastra/otel-exporter", "version": "1.4.0"},
        id="mastra",
    ),
]


@pytest.mark.parametrize(("resource", "scope"), OWN)
def test_a_frameworks_version_is_not_the_agents(resource: dict[str, Any], scope: Json) -> None:
    """Otherwise each upgrade of it is a deployment, which charts mark and drifts are told apart by."""
    assert version_of(request(resource, scope)) is None


@pytest.mark.parametrize(("resource", "scope"), OWN)
def test_an_agents_version_is_read_beside_it(resource: dict[str, Any], scope: Json) -> None:
    """Only the service's is doubtful."""
    assert version_of(request(resource, scope, attributes={"gen_ai.agent.version": "7"})) == "7"


@pytest.mark.parametrize(
    ("resource", "scope"),
    [
        ({"service.name": "bakery", "service.version": "2.4"}, {"name": "bakery", "version": "2.4"}),
        ({"service.name": "bakery", "service.version": "2.4"}, {"name": "agent_framework", "version": "1.23.0"}),
        ({"service.name": "agent_framework", "service.version": "2.4"}, {"name": "agent_framework", "version": "1.23.0"}),
        ({"service.version": "2.4", "telemetry.sdk.name": "opentelemetry", "telemetry.sdk.version": "2.4"}, {}),
    ],
    ids=["own-scope", "told", "told-without-a-name", "sdk"],
)
def test_a_services_version_is_the_agents(resource: dict[str, Any], scope: Json) -> None:
    """A program that gives one means it, whatever it is instrumented with."""
    assert version_of(request(resource, scope)) == "2.4"


def test_scopes_of_one_resource_are_told_apart() -> None:
    """A program's own span keeps the version that a framework's span beside it does not have."""
    sent = request({"service.version": "1.23.0"}, {"name": "agent_framework", "version": "1.23.0"}, parentSpanId="ab" * 8)
    groups = sent.request["resourceSpans"][0]["scopeSpans"]
    groups.append(
        {"scope": {"name": "bakery", "version": "3"}, "spans": [agent(1, question="Is the oven hot?", answer="Very.")]}
    )
    [assembly] = assembled(records_of([sent]))
    labels = {exchange.exchange_id[-1]: [label.value for label in exchange.labels] for exchange in assembly.exchanges}
    assert labels == {"1": [], "2": ["1.23.0"]}
