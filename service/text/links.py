"""Addresses: links to pages, for pages and alerts, and the paths of the API, OpenTelemetry and forms, for routes and clients."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import NamedTuple
from urllib.parse import parse_qsl, quote, unquote, urlencode, urlsplit

from audit.times import time_text
from schemas.bounds import NAME
from schemas.errors import InputError
from service.text.window import ALL

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
API = "/api/audit"
"""The beginning of every call's path."""
CALLS = ("/api/", "/v1/")
"""Prefixes of the paths that require a token: our API and OpenTelemetry's protocol."""
INGEST = f"{API}/ingest"
EVENTS = f"{API}/events"
EVENTS_BULK = f"{EVENTS}/bulk"
EXCHANGES = f"{API}/exchanges"
EVALUATIONS = f"{API}/evaluations"
POLICY = f"{API}/policy"
POLICY_TRIAL = f"{POLICY}/trial"
POLICY_TRIAL_PART = "/admin/policy/trial"
"""The same as a part of a page."""
TRACES, LOGS, METRICS = "/v1/traces", "/v1/logs", "/v1/metrics"
"""Paths of OpenTelemetry's protocol, which exporters append to an address themselves."""
INBOX = f"{API}/incidents"
INBOX_BULK = f"{INBOX}/bulk"
INBOX_PAGE = "/incidents"
FLEET_EXCHANGES, FLEET_SESSIONS, AGENT_PAGE = "/exchanges", "/sessions", "/agents"
"""Pages over all projects."""
LIST_FILES = "/lists"
"""The files of lists, of a project or of all."""
INBOX_VIEWS_PAGE = f"{INBOX_PAGE}/views"


_SHARED_PAGE = re.compile(rf"/projects/({NAME})/(?:(?:incidents|exchanges|runs)/[^/]+|sessions/.+)")


class SharedPage(NamedTuple):
    """A page that can be shared: its project, its path, and the connection of a session."""

    project: str
    path: str
    connection: str | None


def read_shared_page(address: str) -> SharedPage:
    """Return the page of an address that can be shared: an incident, exchange, session or run.

    Raises InputError for any other address.
    """
    parts = urlsplit(address)
    path = unquote(parts.path)
    match = _SHARED_PAGE.fullmatch(path)
    if match is None or parts.scheme or parts.netloc or not path.isprintable():
        raise InputError("page: is not an incident, an exchange, a session or a run", hint="Copy the path of its address.")
    connection = dict(parse_qsl(parts.query)).get("connection")
    return SharedPage(match[1], quote(path), connection)


OWN_TIME = frozenset({"window", "since", "until"})
"""Parameters that give an address its own period."""


class Links:
    """Each method returns a path on this server; names are escaped.

    Links on a page keep the period in its address: `kept` are these parameters, and links to pages of a project include them. A link
    with its own period keeps none.
    """

    def __init__(self, kept: Mapping[str, str] | None = None) -> None:
        self._kept = dict(kept or {})

    fleet = "/"
    telemetry = "/telemetry"
    sql = "/sql"
    sql_snapshot = "/sql/snapshot"
    sign_in = "/sign-in"
    provider_sign_in = "/sign-in/oidc"
    provider_answer = "/sign-in/oidc/callback"
    inbox_views = INBOX_VIEWS_PAGE
    admin = "/admin"
    people = "/admin/access"
    give = "/admin/access/new"
    policy_trial = POLICY_TRIAL_PART

    def statement(self, sql: str, parameters: Mapping[str, str]) -> str:
        """The SQL editor with a statement and the values of its parameters."""
        return _add_params(self.sql, {"q": sql} | {f"p.{name}": value for name, value in parameters.items()})

    def help(self, word: str = "") -> str:
        """The glossary: all of it, or one term by its key such as tier2."""
        return f"/help#{quote(word)}" if word else "/help"

    def connect(self, stack: str | None = None, connection: str | None = None) -> str:
        """How to connect an agent of a stack, and the records received from a connection."""
        return _add_params("/connect", {"stack": stack, "connection": connection})

    def person(self, name: str) -> str:
        """An operator: tokens and sign-ins."""
        return f"{self.people}/people/{_part_address(name)}"

    def connection(self, name: str) -> str:
        """A connection and its tokens."""
        return f"{self.people}/connections/{_part_address(name)}"

    def policy(self, project: str | None = None) -> str:
        """The policy: the file, and what is in force for a project."""
        return _add_params("/admin/policy", {"project": project})

    def deletion(self, **params: str | None) -> str:
        """Retention and erasure; with a `connection`, or one `session` of it, a dry run of its erasure."""
        return _add_params("/admin/deletion", params)

    def retention_plan(self, days: int | None = None) -> str:
        """A dry run of retention, by the policy or keeping this number of days."""
        return _add_params("/admin/deletion/plan", {"days": None if days is None else str(days)})

    def audit_log(self, **params: str | None) -> str:
        """The audit log: by a `name`, in a `project`, from a `cursor` on."""
        return _add_params("/admin/audit-log", params)

    def static(self, name: str) -> str:
        """A file that pages load."""
        return f"/static/{name}"

    def fleet_of(self, **params: str | None) -> str:
        """The fleet; `asked` has the filters, the order and the view."""
        return _add_params(self.fleet, params)

    def project(self, project: str, **params: str | None) -> str:
        """A project."""
        return self._within(_project_address(project), params)

    def tabs(self, project: str) -> Sequence[tuple[str, str]]:
        """The pages of a project that each of them shows as tabs, by name."""
        return (
            ("Overview", self.project(project)),
            ("Incidents", self.incidents(project)),
            ("Exchanges", self.exchanges(project)),
            ("Sessions", self.sessions(project)),
            ("Anomalies", self.anomalies(project)),
            ("Runs", self.runs(project)),
            ("Agent health", self.agents(project)),
            ("Wrap-up", self.wrap_quality(project)),
            ("Review", self.review(project)),
            ("Evaluations", self.evaluations(project)),
            ("Costs", self.costs(project)),
        )

    def fleet_exchanges(self, **params: str | None) -> str:
        """The exchanges of all projects; the parameters filter and sort the list."""
        return self._within(FLEET_EXCHANGES, params)

    def fleet_sessions(self, **params: str | None) -> str:
        """The sessions of all projects; the parameters filter and sort the list."""
        return self._within(FLEET_SESSIONS, params)

    def agent(self, name: str) -> str:
        """An agent over all its projects."""
        return self._within(f"{AGENT_PAGE}/{_part_address(name)}")

    def costs(self, project: str, **params: str | None) -> str:
        """The cost of judging by session."""
        return self._within(f"{_project_address(project)}/costs", params)

    def details(self, project: str) -> str:
        """The less urgent parts of a project: costs, sampling, runs, unscored exchanges."""
        return self._within(f"{_project_address(project)}/details")

    def incident(self, project: str, incident: str) -> str:
        """An incident."""
        return self._within(f"{_project_address(project)}/incidents/{_part_address(incident)}")

    def runs(self, project: str, **params: str | Sequence[str] | None) -> str:
        """The finished runs of a project by readiness, agent, days and cursor, None for any; `sort` can be trust."""
        return self._within_list(f"{_project_address(project)}/runs", params)

    def run(self, project: str, run: str, part: str = "", **params: str | None) -> str:
        """A finished run, by its id such as run_001, or a `part` of its page: the timeline `at` an event, of a `type`, `only` some; a part of the `graph`."""
        path = self._within(_run(project, run), params)
        return f"{path}#{quote(part)}" if part else path

    def run_file(self, project: str, run: str, name: str) -> str:
        """A file of a run: session.json, diagnosis.json, or an event's by its place in its topic."""
        return f"{_run(project, run)}/{quote(name)}"

    def sessions(self, project: str, **params: str | None) -> str:
        """The sessions of a project; `asked` filters and sorts the list."""
        return self._within(f"{_project_address(project)}/sessions", params)

    def exchanges(self, project: str, **params: str | None) -> str:
        """The exchanges of a project; `asked` filters and sorts the list."""
        return self._within(f"{_project_address(project)}/exchanges", params)

    def list_file(self, project: str | None, name: str) -> str:
        """A list of a project, or of all, as a file, such as exchanges.csv."""
        return f"{_project_address(project) if project else ''}{LIST_FILES}/{quote(name)}"

    def session(
        self, project: str, session: str, connection: str | None = None, *, fragment: str = "", **params: str | int | None
    ) -> str:
        """A session, or a place on its page: from a `turn`, around an `exchange` (by id), the events of a `part` from a `step`, `only` anomalies."""
        present = {"connection": connection} | {name: None if value is None else str(value) for name, value in params.items()}
        path = self._within(f"{_project_address(project)}/sessions/{_part_address(session)}", present)
        return f"{path}#{quote(fragment)}" if fragment else path

    def agents(self, project: str, **params: str | None) -> str:
        """The health of a project's agents, run by run: over the last `runs`, or of one `agent`."""
        return self._within_list(f"{_project_address(project)}/agents", params)

    def anomalies(self, project: str, **params: str | None) -> str:
        """The exchanges of a project with an anomaly, and the reasons."""
        return self._within_list(f"{_project_address(project)}/anomalies", params)

    def failures(self, project: str, **params: str | None) -> str:
        """What failed in a project, in groups."""
        return self._within(f"{_project_address(project)}/failures", params)

    def wrap_quality(self, project: str, **params: str | None) -> str:
        """The wrap quality of a project's sessions; `limit` is the number per page."""
        return self._within_list(f"{_project_address(project)}/wrap-quality", params)

    def watched(self, **params: str | None) -> str:
        """The open sessions, and the alerts; `asked` narrows them."""
        return _add_params(self.telemetry, params)

    def evaluations(self, project: str, **params: str | None) -> str:
        """The evaluated runs of a project; `asked` narrows the list."""
        return self._within_list(f"{_project_address(project)}/evaluations", params)

    def evaluation(self, project: str, evaluation: str) -> str:
        """An evaluated run, by the id of the evaluation."""
        return self._within(_evaluation_address(project, evaluation))

    def evaluation_prompt(self, project: str, evaluation: str, name: str) -> str:
        """A message to the judge for an evaluation, in full, as a file."""
        return f"{_evaluation_address(project, evaluation)}/prompts/{name}"

    def review(self, project: str, queue: str | None = None) -> str:
        """The next exchange of a review queue, by default of the general one."""
        return self._within(f"{_project_address(project)}/review", {"queue": queue})

    def review_queues(self, project: str, fragment: str = "", **params: str | None) -> str:
        """The review queues, and the form for one: to `edit` a queue, or with a rule of the other parameters."""
        path = self._within(f"{_project_address(project)}/review/queues", params)
        return f"{path}#{fragment}" if fragment else path

    def agreement(self, project: str, **params: str | None) -> str:
        """The agreement of people and judge, over some `days`."""
        return self._within(f"{_project_address(project)}/agreement", params)

    def scoring(self, project: str, score: str) -> str:
        """The endpoint for a human score, by the id of the judge's."""
        return f"/api/audit/{quote(project)}/scores/{_part_address(score)}/human"

    def incidents(self, project: str, **params: str | Sequence[str] | None) -> str:
        """The incidents of a project: of a `status` or several, a `type` and `confirmed` or not, from a `cursor` on; None is any."""
        return self._within_list(f"{_project_address(project)}/incidents", params)

    def inbox(self, **params: str | Sequence[str] | None) -> str:
        """The incidents of all projects: of a `status` or several, a `project`, `type`, `severity`, `agent`, `assignee`, `text`, `sort`; None is any."""
        return _add_params(INBOX_PAGE, params)

    def deciding(self, project: str, incident: str) -> str:
        """The endpoint for a decision on an incident."""
        return f"/api/audit/{quote(project)}/incidents/{_part_address(incident)}"

    def cases(self, project: str, incident: str) -> str:
        """The endpoint of the cases that are frozen from an incident."""
        return f"{self.deciding(project, incident)}/cases"

    def exchange(self, project: str, score: str, at: datetime | str | None = None) -> str:
        """An exchange, by the id of its score; `at`, the exchange's time, speeds up the look-up."""
        return self._within(f"{_project_address(project)}/exchanges/{_part_address(score)}", {"at": time_text(at)})

    def exchange_text(self, project: str, score: str, name: str, at: datetime | str | None = None) -> str:
        """A text of an exchange in full, as a file."""
        return _add_params(
            f"{_project_address(project)}/exchanges/{_part_address(score)}/texts/{_part_address(name)}", {"at": time_text(at)}
        )

    def _within_list(self, path: str, params: Mapping[str, str | Sequence[str] | None]) -> str:
        """Return the address of a project's list that can show all time, with the kept period unless it has its own."""
        present = {name: value for name, value in params.items() if value is not None}
        return _add_params(path, present if present.keys() & OWN_TIME else {**present, **self._kept})

    def _within(self, path: str, params: Mapping[str, str | Sequence[str] | None] | None = None) -> str:
        """Return the address of a project's page that shows a period, with the kept one unless it has its own."""
        present = {name: value for name, value in (params or {}).items() if value is not None}
        # "All time" is not a period: pages that show a period fall back to the default one.
        keeps = not present.keys() & OWN_TIME and self._kept.get("window") != ALL
        return _add_params(path, {**present, **self._kept} if keeps else present)


def _project_address(project: str) -> str:
    return f"/projects/{quote(project)}"


def _run(project: str, run: str) -> str:
    return f"{_project_address(project)}/runs/{_part_address(run)}"


def _evaluation_address(project: str, evaluation: str) -> str:
    return f"{_project_address(project)}/evaluations/{_part_address(evaluation)}"


def _part_address(text: str) -> str:
    return quote(text, safe="")


def _add_params(path: str, params: Mapping[str, str | Sequence[str] | None]) -> str:
    """Return a path with its parameters."""
    present = {name: value for name, value in params.items() if value is not None}
    return f"{path}?{urlencode(present, doseq=True, quote_via=quote)}" if present else path
