"""The periodic task of the watch: which projects are checked, and when.

1. After scores came or runs were finished a project is checked, and then not for a minute. Its days are added up first
   (`analytics.sums.daily`). Runs that were closed longer than an hour before they came, as in an import of history, wait for the next rule.
2. Every hour, and at the start, all projects with exchanges or runs of late are: a baseline ages, and days leave the rules' windows.
3. Many projects are checked some at a time. One that cannot be checked is logged, and holds up no other.
4. A project that an import is filling waits until it has ended: half of a history would look like a change. The import checks its days
   itself (`streams.watch.history`); what it could not check yet, and what one that was killed has left, the rounds check.
5. The longer a round took, the longer the pause after it, up to a minute: senders share the processor with what adds up a day.
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
from audit.anchors import is_reserved
from audit.drift.consecutive_days import DAYS
from streams.watch.history import History
from streams.watch.watching import PROJECT_BATCH_SIZE, Watch

INTERVAL_SECONDS = 5.0
"""Seconds between looks for new scores and imports; if there are none, a look compares two numbers and reads a few watermarks."""
PAUSE_FACTOR = 9
"""The pause after a round as a multiple of the time it took: rounds take a tenth of the time."""
MAX_PAUSE_SECONDS = 60.0
"""Seconds of the longest pause between rounds."""
MIN_CHECK_INTERVAL = timedelta(seconds=60)
"""The time after a check in which a project is not checked again."""
FULL_CHECK_INTERVAL = timedelta(hours=1)
"""The interval at which every project is checked."""
log = logging.getLogger(__name__)


class WatchRounds:
    """The periodic task `watch`. `ready` says whether the tables show everything that was on the log at the start."""

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
        self._end_of_runs = -1
        self._waiting: set[str] = set()
        self._checked: dict[str, datetime] = {}
        self._all_at: datetime | None = None
        self._clock = clock
        self._took = 0.0

    @property
    def interval(self) -> float:
        """Seconds from the end of the last round to the next: the longer that took, the more."""
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
        held = await self._check_histories(now)
        due = sorted(
            one for one in self._waiting - held if one not in self._checked or now - self._checked[one] >= MIN_CHECK_INTERVAL
        )
        for start in range(0, len(due), PROJECT_BATCH_SIZE):
            part = due[start : start + PROJECT_BATCH_SIZE]
            await self._check(part)
            self._checked.update(dict.fromkeys(part, now))
            self._waiting.difference_update(part)

    async def _check_histories(self, now: datetime) -> set[str]:
        """Check the days that imports left unchecked; answers the projects into which imports are running."""
        held = set()
        for target, mark in (await asyncio.to_thread(self._history.pending)).items():
            if mark.is_held(now):
                held.add(target)
            elif target not in self._history_at or now - self._history_at[target] >= MIN_CHECK_INTERVAL:
                self._history_at[target] = now
                try:
                    checked = await self._history.check(target, now)
                except Exception:
                    log.exception("the history of %s could not be checked", target or "an import")
                else:
                    self._waiting.update(history.project for history in checked if not history.waiting)
        return held

    async def _note_new_scores(self) -> None:
        """Let the projects wait that scores came to since the last time."""
        end = self._store.end_of("scores")
        if end != self._end:
            days = await asyncio.to_thread(refresh_daily, self._store)
            self._waiting |= {project for project, _ in days if not is_reserved(project)}
            self._end = end

    async def _note_new_runs(self, now: datetime) -> None:
        """Let the projects wait whose runs were finished since the last time."""
        end = self._store.end_of("diagnoses")
        if end != self._end_of_runs:
            self._waiting |= set(
                await asyncio.to_thread(_read_projects_since, self._store, "finished_projects", now - FULL_CHECK_INTERVAL)
            )
            self._end_of_runs = end

    async def _note_all(self, now: datetime) -> None:
        """Let every project wait that had exchanges or runs of late, once an hour."""
        if self._all_at is None or now - self._all_at >= FULL_CHECK_INTERVAL:
            self._waiting |= set(await asyncio.to_thread(read_recent_projects, self._store, now))
            self._all_at = now

    async def _check(self, projects: Sequence[str]) -> None:
        try:
            await self._watch.check(projects)
        except Exception:
            if len(projects) == 1:
                log.exception("project %s could not be checked", projects[0])
                return
            for project in projects:
                await self._check([project])


def read_recent_projects(store: Store, as_of: datetime) -> list[str]:
    """Return the projects that had exchanges or runs in the days that a check looks at."""
    return _read_projects_since(store, "watched_projects", as_of - timedelta(days=DAYS))


def _read_projects_since(store: Store, query: str, since: datetime) -> list[str]:
    with contextlib.closing(store.cursor()) as cursor:
        return [row["project"] for row in query_rows(cursor, query, {"since": since})]
