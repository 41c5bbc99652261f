"""The pages of a site, in one table: where each is, what it is called, and what must be seen on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sites import DRIFTED, EVALUATED, QUIET, WORKING, Site

from service.pages.links import Links

LINKS = Links()


@dataclass(frozen=True, slots=True)
class Shown:
    """A page."""

    name: str
    address: Callable[[Site], str]
    heading: str
    seen: tuple[str, ...]
    """Texts that are on it, as people see them."""
    missing: bool = False
    """Whether it says that there is no such thing."""
    again: bool = False
    """Whether it is made as another one, of other data."""


PAGES = (
    Shown("fleet", lambda _: LINKS.fleet, "Fleet", ("support", "1 open incident", "Worst first")),
    Shown("fleet as a table", lambda _: LINKS.fleet_of(view="table"), "Fleet", ("support", "Open incidents"), again=True),
    Shown("project", lambda _: LINKS.project(DRIFTED), DRIFTED, ("Tier 2", "Open incidents", "simulated judge")),
    Shown("project with runs", lambda _: LINKS.project(WORKING), WORKING, ("run_001",), again=True),
    Shown(
        "project of which nothing is known",
        lambda _: LINKS.project("nobody"),
        "",
        ("there is no project nobody",),
        missing=True,
        again=True,
    ),
    Shown("project details", lambda _: LINKS.details(DRIFTED), "Details", ("Cost of judging", "Why exchanges were judged")),
    Shown("agents", lambda _: LINKS.agents(WORKING), "Agent health", ("run_002",)),
    Shown("anomalies", lambda _: LINKS.anomalies(DRIFTED), "Anomalies", ("It left out what was asked.",)),
    Shown("costs", lambda _: LINKS.costs(DRIFTED), "Cost of judging", ()),
    Shown("wrap quality", lambda _: LINKS.wrap_quality(DRIFTED), "wrapped up", ()),
    Shown("incidents", lambda _: LINKS.incidents(DRIFTED), "Incidents", ("Tier 2",)),
    Shown(
        "incident",
        lambda site: LINKS.incident(DRIFTED, site.incident),
        "Tier 2",
        ("Acknowledge", "New normal", "Dismiss", "503"),
    ),
    Shown("exchange", lambda site: LINKS.exchange(DRIFTED, site.score.score_id), "Turn 1", ("The user is in a hurry.",)),
    Shown("runs", lambda _: LINKS.runs(WORKING), "Runs", ("run_001", "run_002")),
    Shown("run", lambda _: LINKS.run(WORKING, "run_001"), "run_001", ("Timeline",)),
    Shown("run of 500 events", lambda _: LINKS.run(WORKING, "run_002"), "run_002", ("Timeline",), again=True),
    Shown("review", lambda _: LINKS.review(DRIFTED), "Review", ("Your score", "Waiting exchanges, and why")),
    Shown("agreement", lambda _: LINKS.agreement(DRIFTED), "Agreement", ("30 days",)),
    Shown("evaluations", lambda _: LINKS.evaluations(EVALUATED), "Evaluations", ("Refund within the policy", "Failed")),
    Shown(
        "evaluation",
        lambda _: LINKS.evaluation(EVALUATED, "s-0002:monthly-report"),
        "A report from two sources",
        ("As it came",),
    ),
    Shown(
        "no evaluation yet",
        lambda _: LINKS.evaluations(WORKING),
        "Evaluations",
        ("No run has been evaluated yet",),
        again=True,
    ),
    Shown("telemetry", lambda _: LINKS.telemetry, "Telemetry", ("since-25", "503")),
    Shown("SQL", lambda _: LINKS.sql, "SQL", ("Worked examples", "Queries and tables")),
    Shown("connect", lambda _: LINKS.connect(), "Connect an agent", ("OpenAI Agents SDK", "OTEL_EXPORTER_OTLP_ENDPOINT")),
    Shown("help", lambda _: LINKS.help(), "Glossary of the pages", ("Tier 2.5 · thinking", "wrapQualityScoring")),
    Shown("no such page", lambda _: LINKS.incident(QUIET, "nothing"), "", ("no incident",), missing=True),
)
