"""Seen versions: a version that a trace is the first to name becomes a deployment, at the time of its exchange.

1. Versions are told apart by project, agent and label. The first that is ever seen of a label is no change, so it is no deployment.
2. Two versions that run beside each other are each deployed once, however often they take turns.
3. Whatever a person or pipeline recorded counts as seen.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from datetime import datetime

from analytics.queries import query_rows
from analytics.store.store import Store
from audit.redaction.redactor import Redactor
from schemas.records import Deployment, Exchange
from streams.upkeep.deployments import deployment

VERSIONS = ("agent_version", "prompt_version", "tool_version")
"""The labels that are versions."""
BY = "traces"
"""Who is said to have deployed what traces were the first to name."""
MAX_PROJECTS = 1_000
"""Projects whose versions are remembered."""
_Series = tuple[str | None, str]
"""Agent and label."""


class SeenVersions:
    """The versions of each project, read from the tables when the project is first met."""

    def __init__(self, store: Store, redactor: Redactor) -> None:
        self._store = store
        self._redactor = redactor
        self._seen: dict[str, dict[_Series, set[str]]] = {}

    def deployments(self, exchanges: Iterable[Exchange], now: datetime) -> Iterator[Deployment]:
        """Yield the deployments that exchanges show, and remember their versions."""
        for exchange in sorted(exchanges, key=lambda one: one.occurred_at):
            versions = self._versions(exchange.project)
            for label in exchange.labels:
                if label.name not in VERSIONS:
                    continue
                known = versions.setdefault((exchange.agent, label.name), set())
                if known and label.value not in known:
                    yield deployment(
                        project=exchange.project,
                        version=label.value,
                        by=BY,
                        now=now,
                        redactor=self._redactor,
                        label=label.name,
                        agent=exchange.agent,
                        at=exchange.occurred_at,
                    )
                known.add(label.value)

    def _versions(self, project: str) -> dict[_Series, set[str]]:
        found = self._seen.get(project)
        if found is None:
            if len(self._seen) >= MAX_PROJECTS:
                self._seen.clear()
            found = self._seen[project] = {}
            with contextlib.closing(self._store.cursor()) as cursor:
                for row in query_rows(cursor, "seen_versions", {"project": project, "labels": list(VERSIONS)}):
                    found.setdefault((row["agent"], row["label"]), set()).add(row["version"])
        return found
