"""The periodic task of the watch: it decides which projects are checked, and when.

1. A project is checked after new scores or finished runs, at most once a minute. Its daily sums are updated first
   (`analytics.sums.daily`). Runs that ended more than an hour ago, as in an import of history, wait for the hourly check.
2. At the start and then every hour, all projects with recent exchanges or runs are checked, because baselines age and days leave the
   windows of the rules.
3. Projects are checked in batches. A project whose check fails is logged, and does not affect the others.
4. A project waits while an import fills it, because half of a history looks like a change. The import checks its days itself
   (`streams.watch.history`). The rounds check the days that it could not check yet, and those that a killed import left.
5. The pause after a round is proportional to its duration, up to a minute, because updating sums takes processor time from senders.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from analytics.queries import query_rows
from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from analytics.sums.search_index import refresh_search
from audit.anchors import is_reserved
from audit.drift.consecutive_days import DAYS
from streams.watch.history import History
from streams.watch.watching import PROJECT_BATCH_SIZE, Watch

INTERVAL_SECONDS = 5.0
"""The shortest pause between rounds, in seconds. A round without new scores or imports compares two numbers and reads a few watermarks."""
PAUSE_FACTOR = 9
"""The pause after a round as a multiple of its duration, so that rounds take a tenth of the time."""
MAX_PAUSE_SECONDS = 60.0
"""The longest pause between rounds."""
MIN_CHECK_INTERVAL = timedelta(seconds=60)
"""The shortest interval between checks of a project."""
FULL_CHECK_INTERVAL = timedelta(hours=1)
"""The interval at which every project is checked."""
log = logging.getLogger(__name__)


class WatchRounds:
    """The periodic task `watch`. It waits until `ready` returns True: then the tables show everything that was in the log at the start."""

    name = "watch"

    def __init__(
        self,
        watch: Watch,
        store: Store,
        now: Callable[[], datetime],
        ready: Callable[[], bool],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._watch = watch
        self._store = store
        self._now = now
        self._ready = ready
        self._history = History(watch, store, now)
        self._history_at: dict[str, datetime] = {}
        self._end = -1
        self._has_unindexed = True
        self._end_of_runs = -1
        self._waiting: set[str] = set()
        self._checked: dict[str, datetime] = {}
        self._all_at: datetime | None = None
        self._clock = clock
        self._took = 0.0

    @property
    def interval(self) -> float:
        """The pause before the next round, in seconds."""
        return min(MAX_PAUSE_SECONDS, max(INTERVAL_SECONDS, PAUSE_FACTOR * self._took))

    async def run(self) -> None:
        """Check the projects that are due."""
        start = self._clock()
        if self._ready():
            await self._check_due(self._now())
        self._took = self._clock() - start

    async def _check_due(self, now: datetime) -> None:
        await self._note_new_scores()
        await self._note_new_runs(now)
        await self._note_all(now)
        importing = await self._check_histories(now)
        due = sorted(project for project in self._waiting - importing if self._is_due(project, now))
        for start in range(0, len(due), PROJECT_BATCH_SIZE):
            batch = due[start : start + PROJECT_BATCH_SIZE]
            await self._check(batch)
            self._checked.update(dict.fromkeys(batch, now))
            self._waiting.difference_update(batch)

    def _is_due(self, project: str, now: datetime) -> bool:
        """Return whether the last check of a project is old enough."""
        checked_at = self._checked.get(project)
        return checked_at is None or now - checked_at >= MIN_CHECK_INTERVAL

    async def _check_histories(self, now: datetime) -> set[str]:
        """Check the days that imports left unchecked, and return the projects into which imports are running."""
        importing: set[str] = set()
        for target, mark in (await asyncio.to_thread(self._history.pending)).items():
            if mark.is_held(now):
                importing.add(target)
            elif target not in self._history_at or now - self._history_at[target] >= MIN_CHECK_INTERVAL:
                self._history_at[target] = now
                try:
                    checked = await self._history.check(target, now)
                except Exception:
                    log.exception("the history of %s cannot be checked", target or "an import")
                else:
                    self._waiting.update(history.project for history in checked if not history.waiting)
        return importing

    async def _note_new_scores(self) -> None:
        """Mark the projects with new scores for a check."""
        end = self._store.end_of("scores")
        if end != self._end or self._has_unindexed:
            self._has_unindexed = await asyncio.to_thread(refresh_search, self._store)
        if end != self._end:
            days = await asyncio.to_thread(refresh_daily, self._store)
            self._waiting |= {project for project, _ in days if not is_reserved(project)}
            self._end = end

    async def _note_new_runs(self, now: datetime) -> None:
        """Mark the projects with newly finished runs for a check."""
        end = self._store.end_of("diagnoses")
        if end != self._end_of_runs:
            # Runs of events alone have no scores, and the descriptions of their tools are sums as well.
            await asyncio.to_thread(refresh_daily, self._store)
            self._waiting |= set(
                await asyncio.to_thread(_read_projects_since, self._store, "finished_projects", now - FULL_CHECK_INTERVAL)
            )
            self._end_of_runs = end

    async def _note_all(self, now: datetime) -> None:
        """Mark all projects with recent exchanges or runs for a check, once an hour."""
        if self._all_at is None or now - self._all_at >= FULL_CHECK_INTERVAL:
            self._waiting |= set(await asyncio.to_thread(read_recent_projects, self._store, now))
            self._all_at = now

    async def _check(self, projects: Sequence[str]) -> None:
        try:
            await self._watch.check(projects)
        except Exception:
            if len(projects) == 1:
                log.exception("project %s cannot be checked", projects[0])
                return
            for project in projects:
                await self._check([project])


def read_recent_projects(store: Store, as_of: datetime) -> list[str]:
    """Return the projects with exchanges or runs in the days that a check examines."""
    return _read_projects_since(store, "watched_projects", as_of - timedelta(days=DAYS))


def _read_projects_since(store: Store, query: str, since: datetime) -> list[str]:
    with contextlib.closing(store.cursor()) as cursor:
        return [row["project"] for row in query_rows(cursor, query, {"since": since})]
