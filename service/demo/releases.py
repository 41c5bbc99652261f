"""Releases of the synthetic agents: the versions in use at each time, as labels of exchanges and as deployments.

Most releases are harmless, so that a deployment alone proves nothing. Version 7 of the support desk is harmful. A few requests still go
to version 6 afterwards (an inverted canary), so that both can be compared on the same days.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from service.demo.days import moment_before

WORSE_AGENT = "support-desk"
"""The agent that gets worse."""
WORSE_DAYS = 5
"""Days on which it is worse: the last ones."""
WORSE_VERSION = "7"
"""The version that is worse."""
WORSE_SHARE = 0.85
"""The share of the requests that this version answers since then; the version before it answers the others."""
AGENT, PROMPT, TOOL = "agent_version", "prompt_version", "tool_version"
"""The labels that releases change."""


@dataclass(frozen=True, slots=True)
class Release:
    """A version of an agent, its prompt or its tools, and the deployment that brought it."""

    agent: str
    label: str
    version: str
    at: datetime
    """Time of the deployment, UTC: before the first session of its day."""
    by: str
    comment: str

    def body(self) -> dict[str, Any]:
        """Return the body of the endpoint that records deployments."""
        told = {"version": self.version, "label": self.label, "agent": self.agent, "by": self.by, "comment": self.comment}
        return {**told, "at": self.at.strftime("%Y-%m-%dT%H:%M:%SZ")}


FIRST = {
    WORSE_AGENT: {AGENT: "6"},
    "code-review": {AGENT: "11"},
    "ops-oncall": {AGENT: "5", TOOL: "2.3"},
    "data-pipeline": {AGENT: "8", PROMPT: "spring"},
    "research": {AGENT: "2"},
    "travel-desk": {AGENT: "3"},
}
"""The labels of each agent before its first release."""
TENANTS = {"code-review": ("backend", "frontend")}
"""Agents that work for two teams, on one day for the one and on the next for the other."""


def worse_since(last_day: date) -> date:
    """Return the day since which the agent is worse."""
    return moment_before(last_day, WORSE_DAYS - 1).date()


def releases_until(last_day: date) -> tuple[Release, ...]:
    """Return the releases of a demo that ends on that day, in the order of their times."""
    worse = "Shorter answers; 15 % of the requests stay on version 6"
    return (
        Release("research", AGENT, "3", moment_before(last_day, 19, 7, 30), "Hanne", "Lists what sources disagree on"),
        Release("ops-oncall", TOOL, "2.4", moment_before(last_day, 16, 7, 10), "Luis", "Certificates over the new service"),
        Release("travel-desk", AGENT, "4", moment_before(last_day, 12, 7, 45), "Aiko", "New model of fares"),
        Release("data-pipeline", PROMPT, "autumn", moment_before(last_day, 6, 7, 20), "Tomasz", "Shorter instructions"),
        Release(WORSE_AGENT, AGENT, WORSE_VERSION, moment_before(last_day, WORSE_DAYS - 1, 7, 15), "Dana", worse),
    )


def labels_of(agent: str, at: datetime, releases: Sequence[Release]) -> dict[str, str]:
    """Return the labels of an agent's exchanges at a time, if every request goes to the newest version."""
    return FIRST[agent] | {
        release.label: release.version for release in releases if release.agent == agent and release.at <= at
    }


def tenant_of(agent: str, days_before: int) -> dict[str, str]:
    """Return the label of the team that an agent works for, this many days before the last day."""
    teams = TENANTS.get(agent)
    return {"tenant": teams[(days_before + 1) % len(teams)]} if teams else {}
