"""Releases of the synthetic agents: which version answers when, as labels of exchanges and as deployments.

Most releases do no harm, so that a deployment alone proves nothing. Version 7 of the support desk does harm, and a few requests still
go to version 6 afterwards (a canary turned around), so that the two can be told apart on the same days.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

WORSE_AGENT = "support-desk"
"""The agent that gets worse."""
WORSE_SINCE = date(2026, 10, 28)
"""The day since which it is worse."""
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
RELEASES = (
    Release("research", AGENT, "3", datetime(2026, 10, 13, 7, 30, tzinfo=UTC), "Hanne", "Lists what sources disagree on"),
    Release("ops-oncall", TOOL, "2.4", datetime(2026, 10, 16, 7, 10, tzinfo=UTC), "Luis", "Certificates over the new service"),
    Release("travel-desk", AGENT, "4", datetime(2026, 10, 20, 7, 45, tzinfo=UTC), "Aiko", "New model of fares"),
    Release("data-pipeline", PROMPT, "autumn", datetime(2026, 10, 26, 7, 20, tzinfo=UTC), "Tomasz", "Shorter instructions"),
    Release(
        WORSE_AGENT,
        AGENT,
        WORSE_VERSION,
        datetime(WORSE_SINCE.year, WORSE_SINCE.month, WORSE_SINCE.day, 7, 15, tzinfo=UTC),
        "Dana",
        "Shorter answers; 15 % of the requests stay on version 6",
    ),
)
"""Releases in the order of their times."""


def labels_of(agent: str, at: datetime) -> dict[str, str]:
    """Return the labels of an agent's exchanges at a time, if every request goes to the newest version."""
    teams = TENANTS.get(agent)
    tenant = {"tenant": teams[at.toordinal() % len(teams)]} if teams else {}
    return FIRST[agent] | tenant | {one.label: one.version for one in RELEASES if one.agent == agent and one.at <= at}
