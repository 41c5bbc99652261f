"""Addresses of the pages, in one place, for links in pages and in alerts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any
from urllib.parse import quote, urlencode

from audit.times import time_text
from service.http.paging import Place, page_of


class Links:
    """Each method returns a path on this server; names are escaped."""

    fleet = "/"
    telemetry = "/telemetry"
    sql = "/sql"
    sign_in = "/sign-in"

    def statement(self, sql: str, parameters: Mapping[str, str]) -> str:
        """The editor with a statement and the values of its parameters."""
        return _asked(self.sql, {"q": sql} | {f"p.{name}": value for name, value in parameters.items()})

    def help(self, word: str = "") -> str:
        """The glossary: all of it, or one term by its key such as tier2."""
        return f"/help#{quote(word)}" if word else "/help"

    def connect(self, stack: str | None = None, connection: str | None = None) -> str:
        """How to connect an agent of a stack, and what has come from a connection."""
        return _asked("/connect", {"stack": stack, "connection": connection})

    def static(self, name: str) -> str:
        """A file that pages load."""
        return f"/static/{name}"

    def fleet_of(self, **asked: str | None) -> str:
        """The fleet: a `view` of it, projects of a `health`."""
        return _asked(self.fleet, asked)

    def project(self, project: str) -> str:
        """A project."""
        return f"/projects/{quote(project)}"

    def costs(self, project: str) -> str:
        """The cost of judging by session."""
        return f"{self.project(project)}/costs"

    def details(self, project: str) -> str:
        """The less urgent parts of a project: costs, sampling, runs, unscored exchanges."""
        return f"{self.project(project)}/details"

    def incident(self, project: str, incident: str) -> str:
        """An incident."""
        return f"{self.project(project)}/incidents/{_part(incident)}"

    def runs(self, project: str, **asked: str | Sequence[str] | None) -> str:
        """The finished runs of a project: by readiness, agent, days and cursor; None is any; `sort` trust."""
        return _asked(f"{self.project(project)}/runs", asked)

    def run(self, project: str, run: str, part: str = "", **asked: str | None) -> str:
        """A finished run, by its id such as run_001, or a `part` of its page: the timeline `at` an event, of a `type`, `only` some; a part of the `graph`."""
        path = _asked(f"{self.project(project)}/runs/{_part(run)}", asked)
        return f"{path}#{quote(part)}" if part else path

    def run_file(self, project: str, run: str, name: str) -> str:
        """A file of a run: session.json, diagnosis.json, or an event's by its place in its topic."""
        return f"{self.run(project, run)}/{quote(name)}"

    def agents(self, project: str) -> str:
        """The agents of a project, run by run."""
        return f"{self.project(project)}/agents"

    def anomalies(self, project: str) -> str:
        """The exchanges of a project with an anomaly, and why."""
        return f"{self.project(project)}/anomalies"

    def wrap_quality(self, project: str, **asked: str | None) -> str:
        """The wrap quality of a project's sessions; `limit` is the number per page."""
        return _asked(f"{self.project(project)}/wrap-quality", asked)

    def watched(self, **asked: str | None) -> str:
        """The open sessions, and the alerts; `asked` narrows them."""
        return _asked(self.telemetry, asked)

    def evaluations(self, project: str, **asked: str | None) -> str:
        """The evaluated runs of a project; `asked` narrows the list."""
        return _asked(f"{self.project(project)}/evaluations", asked)

    def evaluation(self, project: str, evaluation: str) -> str:
        """An evaluated run, by the id of the evaluation."""
        return f"{self.project(project)}/evaluations/{_part(evaluation)}"

    def evaluation_prompt(self, project: str, evaluation: str, name: str) -> str:
        """A message to the judge for an evaluation, in full, as a file."""
        return f"{self.evaluation(project, evaluation)}/prompts/{name}"

    def review(self, project: str) -> str:
        """The review queue."""
        return f"{self.project(project)}/review"

    def agreement(self, project: str) -> str:
        """The agreement of people and judge."""
        return f"{self.project(project)}/agreement"

    def scoring(self, project: str, score: str) -> str:
        """The endpoint for a human score, by the id of the judge's."""
        return f"/api/audit/{quote(project)}/scores/{_part(score)}/human"

    def incidents(self, project: str, **asked: str | Sequence[str] | None) -> str:
        """The incidents of a project: of a `status` or several, a `type` and `confirmed` or not, from a `cursor` on; None is any."""
        return _asked(f"{self.project(project)}/incidents", asked)

    def deciding(self, project: str, incident: str) -> str:
        """The endpoint for a decision on an incident."""
        return f"/api/audit/{quote(project)}/incidents/{_part(incident)}"

    def exchange(self, project: str, score: str, at: datetime | str | None = None) -> str:
        """An exchange, by the id of its score; with `at`, the time of the exchange, it is found sooner among millions."""
        return _asked(f"{self.project(project)}/exchanges/{_part(score)}", {"at": time_text(at)})

    def exchange_text(self, project: str, score: str, name: str, at: datetime | str | None = None) -> str:
        """A text of an exchange in full, as a file."""
        return _asked(f"{self.project(project)}/exchanges/{_part(score)}/texts/{_part(name)}", {"at": time_text(at)})


def _part(text: str) -> str:
    return quote(text, safe="")


def _asked(path: str, asked: Mapping[str, str | Sequence[str] | None]) -> str:
    """Return a path with its parameters."""
    said = {name: value for name, value in asked.items() if value is not None}
    return f"{path}?{urlencode(said, doseq=True, quote_via=quote)}" if said else path


Row = Mapping[str, Any]


def linked(entries: Sequence[Row], limit: int, place: Callable[[Any], Place], query: str = "") -> tuple[list[Row], str | None]:
    """Return the first `limit` entries, and the part of an address that shows the next ones; None if there are none.

    `query` is what the address says beside, such as `?window=7d`.
    """
    shown, cursor = page_of(entries, limit, place)
    return shown, None if cursor is None else f"{query}{'&' if query else '?'}cursor={cursor}"
