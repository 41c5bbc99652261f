"""Addresses of the pages, in one place: what a page links to, and what an alert names."""

from __future__ import annotations

from urllib.parse import quote


class Links:
    """Each answers a path on this server; names are escaped."""

    fleet = "/"
    telemetry = "/telemetry"
    sql = "/sql"
    sign_in = "/sign-in"

    def static(self, name: str) -> str:
        """A file of ours that pages load."""
        return f"/static/{name}"

    def project(self, project: str) -> str:
        """A project."""
        return f"/projects/{quote(project)}"

    def incident(self, project: str, incident: str) -> str:
        """An incident."""
        return f"{self.project(project)}/incidents/{_part(incident)}"

    def run(self, project: str, run: str) -> str:
        """A finished run, by its id such as run_001."""
        return f"{self.project(project)}/runs/{_part(run)}"

    def agents(self, project: str) -> str:
        """How the agents of a project did, run by run."""
        return f"{self.project(project)}/agents"

    def review(self, project: str) -> str:
        """What waits for a person's score."""
        return f"{self.project(project)}/review"

    def exchange(self, project: str, score: str) -> str:
        """An exchange, by the id of its score."""
        return f"{self.project(project)}/exchanges/{_part(score)}"


def _part(text: str) -> str:
    return quote(text, safe="")
