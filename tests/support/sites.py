"""A whole server on the data of a small fleet, and its pages in one table: where each is, what it is called, and what must be seen on it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import msgspec
import yaml
from support import hostile_texts as hostile
from support.api_server import PATIENT, LiveServer
from support.builders import exchange, judgement
from support.clocks import NOW, TickingClock
from support.sample_evaluations import SET, evaluated
from support.servers import PATIENCE, until
from support.watch_histories import fallen, history, put

from analytics.store.store import Outbox, Store
from analytics.sums.daily import refresh_daily
from audit.policy import Policy, load_policy
from audit.redaction import Redactor
from schemas.records import Alert, DimensionScore, Heartbeat, Score
from service.setup.access import AccessStore, Holder
from service.text.links import Links
from service.web.bounds import ApiSettings
from streams.engine.engine import Engine

DRIFTED, WORKING, EVALUATED, QUIET = "support", "desk", "shop", "night"
"""Projects: one that drifts, one with finished runs, one whose runs were held against cases, one where sessions are silent."""
POLICY = {
    "version": 1,
    "defaults": {"bidirectionalScoring": True, "wrapQualityScoring": True},
    "projects": {hostile.WILD: {"methodology": "wild.yaml", "costCapPerSession": None}},
}
SAME = "night-1"
"""A session that the projects of the finished runs and of the silent sessions both have."""
RUNS = (12, 500)
"""Events of the finished runs."""
_ASKED = (
    "Where is order 4711?",
    "Please cancel my subscription.",
    "The invoice of October shows two items that I never ordered.",
)
_SAID = ("It left the depot this morning.", "I have cancelled it.", "I cannot help with that.")
_ANSWER = '{"dimensions": {"correctness": {"score": 0.4, "reasoning": "It answers what was asked."}}}'
_DIMENSIONS = ("correctness", "instruction_following", "clarity", "tone")


@dataclass(frozen=True, slots=True)
class Site:
    """A running server, and the credentials for it."""

    url: str
    operator: str
    """Token of an operator of every project."""
    connections: Mapping[str, str]
    """Token of the connection of each project."""
    score: Score
    """The newest score of the project that drifts."""
    incident: str
    """Id of its incident."""
    access: AccessStore
    """The file of its tokens."""

    def post(self, path: str, token: str, body: Any = None, method: str = "POST") -> dict[str, Any]:
        """Send a POST request to the API, as a gateway or an operator does."""
        headers = {"Authorization": f"Bearer {token}"}
        address = f"{self.url}/api/audit/{path}"
        answer = httpx2.request(method, address, headers=headers, json=body or {}, timeout=PATIENCE, trust_env=False)
        assert answer.is_success, answer.text
        document: dict[str, Any] = answer.json()
        return document

    def get(self, path: str) -> dict[str, Any]:
        """Return the API's answer to an operator."""
        headers = {"Authorization": f"Bearer {self.operator}"}
        document: dict[str, Any] = httpx2.get(
            f"{self.url}/api/audit/{path}", headers=headers, trust_env=False, timeout=60
        ).json()
        return document

    def say(
        self, project: str, session: str, number: int, question: str, answer: str, *, agent: str | None = None, **fields: Any
    ) -> None:
        """Ingest one exchange of an agent."""
        body = {
            "id": f"{session}:{number}",
            "timestamp": iso(NOW - timedelta(seconds=30)),
            "turn_number": number,
            "user_message": {"content": question},
            "agent_response": {"content": answer, **fields},
        }
        self.post("ingest", self.connections[project], {"session_id": session, "agent": agent, "exchange": body})

    def work(
        self, project: str, session: str, events: Iterable[Mapping[str, Any]], runs: int, agent: str | None = None
    ) -> None:
        """Send the events of a session and end it; wait until the project has this many runs."""
        timed = [{"timestamp": iso(NOW - timedelta(hours=2, seconds=-place)), **one} for place, one in enumerate(events)]
        body = {"session_id": session, "agent": agent, "first_seq": 0, "events": timed}
        self.post("events", self.connections[project], body)
        self.post(f"sessions/{quote(session, safe='')}/finalize", self.connections[project])
        until(lambda: runs == len(self.get(f"{project}/runs")["runs"]), "the diagnoses")


@contextmanager
def site(folder: Path) -> Iterator[Site]:
    """Yield a site with its fleet in its own folder."""
    with Store(folder / "fleet.duckdb") as store, AccessStore(folder / "fleet.access", TickingClock(NOW)) as access:
        newest = _fill(store)
        projects = (DRIFTED, WORKING, EVALUATED, QUIET, hostile.WILD)
        connections = {project: access.add(Holder("connection", project, project)) for project in projects}
        operator = access.add(Holder("operator", "ada", None))
        policy = _policy(folder)
        server = LiveServer(
            store,
            access,
            ApiSettings(queries=PATIENT, policy_file=folder / "policy.yaml"),
            lambda store: _engine(store, policy),
        )
        try:
            new_site = Site(server.url, operator, connections, newest, "", access)
            yield _begun(new_site, store)
        finally:
            server.stop()


def iso(time: datetime) -> str:
    """Return a time in the format of senders."""
    return time.isoformat().replace("+00:00", "Z")


def _policy(folder: Path) -> Policy:
    """Write the policy and the methodology of the wild project to files."""
    (folder / "wild.yaml").write_text(yaml.safe_dump(hostile.methodology()), "utf-8")
    file = folder / "policy.yaml"
    file.write_text(yaml.safe_dump(POLICY), "utf-8")
    return load_policy(file)


def _engine(store: Store, policy: Policy) -> Engine:
    judge = hostile.WildJudge()
    return Engine(store, policy, Redactor(policy.redaction), TickingClock(NOW), judge=judge, judge_name="scripted judge")


def _fill(store: Store) -> Score:
    """Store what a server would have taken weeks to produce, and return the newest score."""
    scores = [_told(one) for one in history(fallen(3), 24, project=DRIFTED, a_day=8, end=NOW)]
    answers = [
        exchange(
            one.session_id,
            1,
            _SAID[place % 3],
            user_message=_ASKED[place % 3],
            agent_thinking="The user is in a hurry.",
            project=DRIFTED,
            occurred_at=one.exchange_at,
            ingested_at=one.exchange_at,
        )
        for place, one in enumerate(scores)
    ]
    questions = [
        judgement(one.session_id, 1, project=DRIFTED, judged_at=one.exchange_at, answer=_ANSWER, simulated=True)
        for one in scores
    ]
    put(store, "exchanges", answers)
    put(store, "scores", scores)
    put(store, "judgements", questions)
    put(store, "evaluations", [evaluated(one).evaluation for one in SET])
    hostile.fill(store)
    for minutes in (7, 25):
        at = NOW - timedelta(minutes=minutes)
        sign = Heartbeat(connection=QUIET, project=QUIET, session_id=f"since-{minutes}", occurred_at=at, ingested_at=at)
        put(store, "heartbeats", [sign])
    with store.transaction() as transaction:
        # What is said here has its scores: no stage has to make them.
        transaction.set_watermark("intake", "exchanges", len(answers))
    return max(scores, key=lambda one: one.exchange_at)


def _told(score: Score) -> Score:
    """Return a score with the judge's explanation."""
    low = score.tier2_score is not None and score.tier2_score < 0.4
    return msgspec.structs.replace(
        score,
        tier2_dimensions=tuple(
            DimensionScore(dimension=name, score=score.tier2_score or 0.0, reasoning="It answers what was asked.")
            for name in _DIMENSIONS
        ),
        anomaly=low,
        anomaly_reasons=("It left out what was asked.",) if low else (),
        simulated=True,
        agent="support-desk",
    )


def _events(count: int) -> Iterator[dict[str, Any]]:
    """Return the events of a run that reads, fails, retries and continues; always the same."""
    chance = random.Random(count)
    yield {"event": "session_start"}
    for number in range((count - 2) // 2):
        tool = chance.choice(("search", "read_file", "write_file", "exec"))
        yield {"event": "tool_call", "tool": tool, "args": {"q": f"order {number % 5}"}, "tokens": 120}
        yield {"event": "tool_output", "tool": tool, "result": "found nothing", "is_error": number % 7 == 3}
    yield {"event": "session_end"}


def _begun(new_site: Site, store: Store) -> Site:
    """Add what only a running server makes: the incident, the runs, silent agents and sent alerts."""
    new_site.post(f"{DRIFTED}/check", new_site.operator)
    refresh_daily(store)
    incident: str = next(one["id"] for one in new_site.get(f"{DRIFTED}/incidents")["incidents"] if one["type"] == "drift")
    for number, count in enumerate(RUNS, 1):
        new_site.work(WORKING, f"night-{number}", _events(count), number)
    for number in range(3):
        new_site.say(QUIET, f"talk-{number}", 1, _ASKED[number], _SAID[number], thinking="The user is in a hurry.")
    new_site.say(QUIET, SAME, 1, _ASKED[0], _SAID[0])
    alert = Alert(
        alert_id="a1", channel="webhook", kind="incident", subject_id=incident, project=DRIFTED, severity="critical", body="{}",
        created_at=NOW, not_before=NOW, attempts=2, status="waiting", last_error="the address answered 503",
    )  # fmt: skip
    Outbox(store).put([alert, *hostile.alerts()])
    return replace(new_site, incident=incident)


LINKS = Links()


@dataclass(frozen=True, slots=True)
class PageCase:
    """A page of the site, and what a visitor must see on it."""

    name: str
    address: Callable[[Site], str]
    heading: str
    visible_texts: tuple[str, ...]
    is_missing: bool = False
    """Whether the page answers that its subject does not exist."""
    has_seen_layout: bool = False
    """Whether an earlier page has the same layout with other data."""


PAGES = (
    PageCase("fleet", lambda _: LINKS.fleet, "Fleet", ("support", "1 open incident", "Worst first")),
    PageCase(
        "fleet as a table", lambda _: LINKS.fleet_of(view="table"), "Fleet", ("support", "Open incidents"), has_seen_layout=True
    ),
    PageCase("project", lambda _: LINKS.project(DRIFTED), DRIFTED, ("Tier 2", "Open incidents", "Simulated judge")),
    PageCase("project with runs", lambda _: LINKS.project(WORKING), WORKING, ("run_001",), has_seen_layout=True),
    PageCase(
        "project of which nothing is known",
        lambda _: LINKS.project("nobody"),
        "",
        ("There is no project nobody",),
        is_missing=True,
        has_seen_layout=True,
    ),
    PageCase("agents", lambda _: LINKS.agents(WORKING), "Agent health", ("run_002",)),
    PageCase("anomalies", lambda _: LINKS.anomalies(DRIFTED), "Anomalies", ("It left out what was asked.",)),
    PageCase("failures", lambda _: LINKS.failures(DRIFTED), f"What failed in {DRIFTED}", ("Thinking and answer do not align",)),
    PageCase("exchanges of the fleet", lambda _: LINKS.fleet_exchanges(), "Exchanges", ()),
    PageCase("sessions of the fleet", lambda _: LINKS.fleet_sessions(), "Sessions", ()),
    PageCase("agent", lambda _: LINKS.agent("support-desk"), "support-desk", ()),
    PageCase("costs", lambda _: LINKS.costs(DRIFTED), f"{DRIFTED}: costs", ("Judging",)),
    PageCase("wrap quality", lambda _: LINKS.wrap_quality(DRIFTED), "Wrap-up of sessions", ()),
    PageCase("incidents", lambda _: LINKS.incidents(DRIFTED), "Incidents", ("answer quality",)),
    PageCase("inbox", lambda _: LINKS.inbox(), "Incidents", ("answer quality", "worst first")),
    PageCase(
        "incident",
        lambda site: LINKS.incident(DRIFTED, site.incident),
        "answer quality",
        ("Acknowledge", "New normal", "Dismiss", "503"),
    ),
    PageCase("exchange", lambda site: LINKS.exchange(DRIFTED, site.score.score_id), "Turn 1", ("The user is in a hurry.",)),
    PageCase(
        "session",
        lambda site: LINKS.session(DRIFTED, site.score.session_id, site.score.connection),
        "Session",
        ("Conversation", "The user is in a hurry.", "Cost of judging"),
    ),
    PageCase(
        "session of 500 events alone",
        lambda _: LINKS.session(WORKING, "night-2"),
        "Session night-2",
        ("Events", "run_002", "tool_call"),
        has_seen_layout=True,
    ),
    PageCase(
        "no such session",
        lambda _: LINKS.session(WORKING, "nothing"),
        "",
        ("no session",),
        is_missing=True,
        has_seen_layout=True,
    ),
    PageCase("sessions of one id", lambda _: f"/sessions/{SAME}", f"Session {SAME}", ("Which one?", "desk", "night")),
    PageCase(
        "exchanges", lambda _: LINKS.exchanges(DRIFTED), "Exchanges", ("It left out what was asked.", "support-desk", "CSV")
    ),
    PageCase("sessions", lambda _: LINKS.sessions(DRIFTED), "Sessions", ("support-desk", "Anomalies")),
    PageCase("no exchanges", lambda _: LINKS.exchanges(WORKING), "Exchanges", ("No exchanges",), has_seen_layout=True),
    PageCase("runs", lambda _: LINKS.runs(WORKING), "Runs", ("run_001", "run_002")),
    PageCase("run", lambda _: LINKS.run(WORKING, "run_001"), "run_001", ("Timeline",)),
    PageCase("run of 500 events", lambda _: LINKS.run(WORKING, "run_002"), "run_002", ("Timeline",), has_seen_layout=True),
    PageCase("review queues", lambda _: LINKS.review_queues(DRIFTED), "Review queues", ("No queues yet", "New queue")),
    PageCase("review", lambda _: LINKS.review(DRIFTED), "Review", ("Your score", "Waiting exchanges, and why")),
    PageCase("agreement", lambda _: LINKS.agreement(DRIFTED), "Agreement", ("30 days",)),
    PageCase(
        "evaluations",
        lambda _: LINKS.evaluations(EVALUATED, window="all"),
        "Evaluations",
        ("Refund within the policy", "Failed"),
    ),
    PageCase(
        "evaluation",
        lambda _: LINKS.evaluation(EVALUATED, "s-0002:monthly-report"),
        "A report from two sources",
        ("Raw answer",),
    ),
    PageCase(
        "no evaluation yet",
        lambda _: LINKS.evaluations(WORKING),
        "Evaluations",
        ("No run has been evaluated yet",),
        has_seen_layout=True,
    ),
    PageCase("telemetry", lambda _: LINKS.telemetry, "Live sessions and alerts", ("since-25", "503")),
    PageCase("SQL", lambda _: LINKS.sql, "SQL", ("Worked examples", "Views and tables")),
    PageCase("connect", lambda _: LINKS.connect(), "Connect an agent", ("OpenAI Agents SDK", "OTEL_EXPORTER_OTLP_ENDPOINT")),
    PageCase("administration", lambda _: LINKS.admin, "Administration", ("Give someone access", "Dead letters", "Database")),
    PageCase("access", lambda _: LINKS.people, "Access", ("ada", "all projects", "Reviewers", "Connections")),
    PageCase(
        "give access",
        lambda _: LINKS.give,
        "Give someone access",
        ("View all pages", "leave this empty for all", "Access ends"),
    ),
    PageCase("person", lambda _: LINKS.person("ada"), "ada", ("this is you", "Revoke", "End all sign-ins")),
    PageCase("connection", lambda _: LINKS.connection(QUIET), QUIET, ("Create a new token", "Revoke"), has_seen_layout=True),
    PageCase(
        "policy",
        lambda _: LINKS.policy(DRIFTED),
        "Policy",
        ("Check", f"Settings in force for {DRIFTED}", "not only changed ones"),
    ),
    PageCase(
        "retention and erasure",
        lambda _: LINKS.deletion(connection=WORKING),
        "Retention and erasure",
        ("Type desk to confirm", "Erasures so far", "90 days"),
    ),
    PageCase("audit log", lambda _: LINKS.audit_log(show="all"), "Audit log", ("POST /api/audit/sign-in", "Sign-ins")),
    PageCase("sign-in", lambda _: LINKS.sign_in, "Sign in", ("Use the token of an operator.", "Token")),
    PageCase("help", lambda _: LINKS.help(), "Help", ("Daily routine", "Thinking quality · Tier 2.5")),
    PageCase("no such page", lambda _: LINKS.incident(QUIET, "nothing"), "", ("no incident",), is_missing=True),
)
