"""The periodic task that has anchors judged when their time has come."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from datetime import datetime, timedelta
from typing import Any

from analytics.queries import query_rows
from streams.engine.record_intake import RecordIntake
from streams.upkeep.anchors import run_round

log = logging.getLogger(__name__)


class AnchorRounds:
    """Begins a round of each project whose last one is longer ago than its policy says; a `streams.upkeep.periodic_tasks.PeriodicTask`.

    When the last one was is read from the tables, so that a restart begins none too early; what was begun here counts until it
    shows there. Without a judge none begins.
    """

    name = "anchor rounds"
    interval = 600.0

    def __init__(self, engine: RecordIntake) -> None:
        self._engine = engine
        self._begun: dict[str, datetime] = {}

    async def run(self) -> None:
        """Begin the rounds that are due."""
        if not self._engine.has_judge:
            return
        for row in await asyncio.to_thread(self._rows):
            if self._is_due(row["project"], row["last_round"]):
                await self._begin(row["project"])

    async def _begin(self, project: str) -> None:
        """Begin a round; one that cannot begin holds up no other project, and is tried again the next time."""
        try:
            begun = await run_round(self._engine, project)
        except Exception:
            log.exception("the anchors of %s could not be judged again", project)
            return
        self._begun[project] = begun.at
        log.info("%d anchors of %s are judged again", begun.exchanges, project)

    def _is_due(self, project: str, last: datetime | None) -> bool:
        settings = self._engine.policy.for_project(project).settings
        if not settings.enabled or not settings.anchors.enabled:
            return False
        begun = [at for at in (last, self._begun.get(project)) if at is not None]
        return not begun or self._engine.now() - max(begun) >= timedelta(hours=settings.anchors.interval_hours)

    def _rows(self) -> list[dict[str, Any]]:
        with contextlib.closing(self._engine.store.cursor()) as cursor:
            return query_rows(cursor, "anchor_rounds")
