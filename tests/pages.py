"""The pages of a site, in one table: where each is, what it is called, and what must be seen on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sites import DRIFTED, EVALUATED, QUIET, SAME, WORKING, Site

from service.text.links import Links

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
        ("There is no project nobody",),
        missing=True,
        again=True,
    ),
    Shown("project details", lambda _: LINKS.details(DRIFTED), "Details", ("Cost of judging", "Why exchanges were judged")),
    Shown("agents", lambda _: LINKS.agents(WORKING), "Agent health", ("run_002",)),
    Shown("anomalies", lambda _: LINKS.anomalies(DRIFTED), "Anomalies", ("It left out what was asked.",)),
    Shown("costs", lambda _: LINKS.costs(DRIFTED), "Cost of judging", ()),
    Shown("wrap quality", lambda _: LINKS.wrap_quality(DRIFTED), "wrapped up", ()),
    Shown("incidents", lambda _: LINKS.incidents(DRIFTED), "Incidents", ("Tier 2",)),
    Shown("inbox", lambda _: LINKS.inbox(), "Incidents", ("Tier 2", "worst first")),
    Shown(
        "incident",
        lambda site: LINKS.incident(DRIFTED, site.incident),
        "Tier 2",
        ("Acknowledge", "New normal", "Dismiss", "503"),
    ),
    Shown("exchange", lambda site: LINKS.exchange(DRIFTED, site.score.score_id), "Turn 1", ("The user is in a hurry.",)),
    Shown(
        "session",
        lambda site: LINKS.session(DRIFTED, site.score.session_id, site.score.connection),
        "Session",
        ("Conversation", "The user is in a hurry.", "Cost of judging"),
    ),
    Shown(
        "session of 500 events alone",
        lambda _: LINKS.session(WORKING, "night-2"),
        "Session night-2",
        ("Events", "run_002", "tool_call"),
        again=True,
    ),
    Shown("no such session", lambda _: LINKS.session(WORKING, "nothing"), "", ("no session",), missing=True, again=True),
    Shown("sessions of one id", lambda _: f"/sessions/{SAME}", f"Session {SAME}", ("Which one?", "desk", "night")),
    Shown("exchanges", lambda _: LINKS.exchanges(DRIFTED), "Exchanges", ("It left out what was asked.", "support-desk", "CSV")),
    Shown("sessions", lambda _: LINKS.sessions(DRIFTED), "Sessions", ("support-desk", "Anomalies")),
    Shown("no exchanges", lambda _: LINKS.exchanges(WORKING), "Exchanges", ("No exchanges",), again=True),
    Shown("runs", lambda _: LINKS.runs(WORKING), "Runs", ("run_001", "run_002")),
    Shown("run", lambda _: LINKS.run(WORKING, "run_001"), "run_001", ("Timeline",)),
    Shown("run of 500 events", lambda _: LINKS.run(WORKING, "run_002"), "run_002", ("Timeline",), again=True),
    Shown("review", lambda _: LINKS.review(DRIFTED), "Review", ("Your score", "Waiting exchanges, and why")),
    Shown("agreement", lambda _: LINKS.agreement(DRIFTED), "Agreement", ("30 days",)),
    Shown(
        "evaluations",
        lambda _: LINKS.evaluations(EVALUATED, window="all"),
        "Evaluations",
        ("Refund within the policy", "Failed"),
    ),
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
    Shown("administration", lambda _: LINKS.admin, "Administration", ("Give someone access", "Dead letters", "Database")),
    Shown("access", lambda _: LINKS.people, "Access", ("ada", "all projects", "Reviewers", "Connections")),
    Shown(
        "give access", lambda _: LINKS.give, "Give someone access", ("Change nothing.", "leave it empty for all", "Access ends")
    ),
    Shown("person", lambda _: LINKS.person("ada"), "ada", ("this is you", "Revoke", "End all sign-ins")),
    Shown("connection", lambda _: LINKS.connection(QUIET), QUIET, ("Make a new token", "Revoke"), again=True),
    Shown("policy", lambda _: LINKS.policy(DRIFTED), "Policy", ("Check", f"In force for {DRIFTED}", "retentionDays")),
    Shown(
        "retention and erasure",
        lambda _: LINKS.deletion(connection=WORKING),
        "Retention and erasure",
        ("Type desk to confirm", "Erasures so far", "90 days"),
    ),
    Shown("audit log", lambda _: LINKS.audit_log(), "Audit log", ("POST /api/audit/sign-in", "done")),
    Shown("sign-in", lambda _: LINKS.sign_in, "Sign in", ("Use the token of an operator.", "Token")),
    Shown("help", lambda _: LINKS.help(), "Glossary of the pages", ("Tier 2.5 · thinking", "wrapQualityScoring")),
    Shown("no such page", lambda _: LINKS.incident(QUIET, "nothing"), "", ("no incident",), missing=True),
)
