"""Filing of the spans that an OpenTelemetry Collector puts on Kafka: no token comes with them, so the policy says whose they are.

A trace belongs to one connection: spans of one trace that are filed under two connections become two traces. So routes as a rule name a
project alone, and a connection only for services that share no trace with others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, NamedTuple

from pydantic import Field, StringConstraints, model_validator

from audit.anchors.own_names import OwnName
from audit.policy.model import PolicyModel
from schemas.bounds.limits import MAX_ID

ANY = "*"
"""At the end of a service's name: whatever follows."""
Text = Annotated[str, StringConstraints(min_length=1, max_length=MAX_ID)]


class Origin(NamedTuple):
    """Origin of spans: the topic, the headers of the message and the `service.name` of the resource, empty if it has none."""

    topic: str
    headers: Mapping[str, str]
    service: str


class SpanFiling(NamedTuple):
    """Names that spans are filed under; without an agent the spans tell it."""

    connection: str
    project: str
    agent: str | None


class CollectorRoute(PolicyModel):
    """Spans that are filed differently. All conditions of a route must hold, and it has at least one."""

    topic: Text | None = None
    """Name of the topic, as it is on the cluster."""
    service: Text | None = None
    """`service.name` of the resource; with `*` at its end, what it begins with."""
    headers: Annotated[dict[Text, Text], Field(max_length=8)] = Field(default_factory=dict)
    """Headers of the message on Kafka, by name, with the value of each."""
    connection: OwnName | None = None
    """The connection; null is that of the section. A trace that is filed under two connections is taken for two."""
    project: OwnName | None = None
    """The project; null is that of the section."""
    agent: Text | None = None
    """The agent, whatever the spans tell; null is that of the section."""

    @model_validator(mode="after")
    def _has_a_condition(self) -> CollectorRoute:
        if self.topic is None and self.service is None and not self.headers:
            raise ValueError("needs a topic, a service or headers: what holds for all spans stands above the routes")
        return self

    def takes(self, origin: Origin) -> bool:
        """Tell whether the conditions hold."""
        return (
            self.topic in (None, origin.topic)
            and self._takes_service(origin.service)
            and all(origin.headers.get(name) == value for name, value in self.headers.items())
        )

    def _takes_service(self, service: str) -> bool:
        if self.service is None:
            return True
        return service.startswith(self.service.removesuffix(ANY)) if self.service.endswith(ANY) else service == self.service


class Collector(PolicyModel):
    """The spans that an OpenTelemetry Collector puts on Kafka: what they are filed under."""

    connection: OwnName = "collector"
    """The connection. One for all spans keeps every trace together."""
    project: OwnName = "default"
    """The project of spans that no route takes."""
    agent: Text | None = None
    """The agent, whatever the spans tell; null leaves it to them."""
    routes: Annotated[tuple[CollectorRoute, ...], Field(max_length=1000)] = ()
    """Spans that are filed differently; the first route that takes a span counts."""

    def filing(self, origin: Origin) -> SpanFiling:
        """Return what spans from there are filed under."""
        route = next((route for route in self.routes if route.takes(origin)), None)
        if route is None:
            return SpanFiling(self.connection, self.project, self.agent)
        return SpanFiling(route.connection or self.connection, route.project or self.project, route.agent or self.agent)
