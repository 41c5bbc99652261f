"""Filing of a Collector's spans: the first matching route decides, and its missing fields come from the section."""

from __future__ import annotations

from pathlib import Path

import pytest

from audit.anchors import ANCHORS
from audit.policy import Collector, Origin, Policy, SpanFiling, load_policy
from schemas.errors import PolicyError

FILE = """
version: 1
collector:
  connection: fleet
  project: everything
  agent: bot
  routes:
    - {service: checkout-web, project: shop, agent: web}
    - {service: checkout-*, project: checkout}
    - {topic: spans-of-south, headers: {x-tenant: north}, connection: north}
    - {topic: spans-of-south, project: south}
"""


@pytest.fixture
def collector(tmp_path: Path) -> Collector:
    """Return the section of a file."""
    path = tmp_path / "policy.yaml"
    path.write_text(FILE)
    return load_policy(path).collector


@pytest.mark.parametrize(
    ("origin", "filing"),
    [
        (Origin("otlp_spans", {}, ""), SpanFiling("fleet", "everything", "bot")),
        (Origin("otlp_spans", {}, "checkout-web"), SpanFiling("fleet", "shop", "web")),
        (Origin("otlp_spans", {}, "checkout-web2"), SpanFiling("fleet", "checkout", "bot")),
        (Origin("otlp_spans", {}, "checkout"), SpanFiling("fleet", "everything", "bot")),
        (Origin("spans-of-south", {}, "checkout-api"), SpanFiling("fleet", "checkout", "bot")),
        (Origin("spans-of-south", {"x-tenant": "north"}, ""), SpanFiling("north", "everything", "bot")),
        (Origin("spans-of-south", {"x-tenant": "east"}, ""), SpanFiling("fleet", "south", "bot")),
        (Origin("otlp_spans", {"x-tenant": "north"}, ""), SpanFiling("fleet", "everything", "bot")),
    ],
)
def test_the_first_route_whose_conditions_all_hold_files_a_span(
    collector: Collector, origin: Origin, filing: SpanFiling
) -> None:
    """One topic may carry spans of many teams; a finer filing could split a trace."""
    assert collector.filing(origin) == filing


def test_without_a_section_every_span_has_one_connection_and_one_project() -> None:
    """A first attempt needs no policy, and splits no trace."""
    assert SpanFiling("collector", "default", None) == Policy().collector.filing(Origin("otlp_spans", {}, "any"))


def test_where_spans_come_from_says_nothing_of_how_they_are_judged(tmp_path: Path) -> None:
    """A score carries the digest of its policy: a new service must not make all scores incomparable."""
    path = tmp_path / "policy.yaml"
    path.write_text(FILE)
    assert Policy().digest == load_policy(path).digest


@pytest.mark.parametrize(
    ("route", "words"),
    [
        ("{project: shop}", "needs a topic, a service or headers"),
        ("{service: web, project: Shop}", "project"),
        (f"{{service: web, connection: {ANCHORS}}}", "reserved for anchors"),
        ("{service: '', project: shop}", "service"),
        ("{servce: web, project: shop}", "servce"),
    ],
)
def test_a_route_that_cannot_be_meant_is_refused_with_its_line(tmp_path: Path, route: str, words: str) -> None:
    """A route that takes everything, or nothing, would silently misfile the spans of a fleet."""
    path = tmp_path / "policy.yaml"
    path.write_text(f"version: 1\ncollector:\n  routes:\n    - {route}\n")
    with pytest.raises(PolicyError, match=words) as refused:
        load_policy(path)
    assert "policy.yaml:4" in str(refused.value)
