"""The check of history: an import brings days on which no watch looked, and each of them is checked as of its end.

1. Before an import takes anything in, `begin` notes where scores and diagnoses end. Days that records came to after that were brought by
   the import. `check` looks at them as of their ends (midnight, UTC), oldest first, and so opens and closes incidents on the days on which
   a watch would have. A day that is not over is left to the check as of now.
2. A watch also looks at days without data, while there is data within the week before. So does this, but only after the newest
   check of the project: a look back revises nothing, and opens what only the records that came can show.
3. Progress is noted after each day. Cut off in the middle of the import or of the check, the next import, `check-drift` or server goes on
   with the day after the last one noted. A day that was checked again would say the same of the same records.
4. Where exchanges that were brought still wait for the server's judge, nothing is checked: their tiers would be compared in part. The rounds of the
   server check them once they have scores, or after a day.
5. Alerts are about what was seen within the last day (`service.alerts.delivery`): history that ended raises none.
6. While an import runs, the rounds leave its project alone. They take one that has not ended in an hour to have been killed.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, NamedTuple

from analytics.queries import query_records, query_rows
from analytics.store.positions import read_watermarks
from analytics.store.store import Store
from analytics.sums.daily import refresh_daily
from audit.drift.consecutive_days import DAYS
from schemas.records import Incident
from streams.watch.checking import CheckResult
from streams.watch.lifecycle import DAY
from streams.watch.measures import MAX_SCORE_DELAY, midnight
from streams.watch.watching import Watch

CONSUMER = "history"
"""Consumer whose watermarks are the marks of imports: the topic is what the import fills, the partition the place in `Mark`."""
EVERY_PROJECT = ""
"""An import that fills the projects which its records name."""
MAX_IMPORT_AGE = timedelta(hours=1)
"""After so long an import that has not ended is taken to have been killed."""
NONE_PENDING = -1
"""Position of a mark without anything left to check."""
_EPOCH = date(1970, 1, 1)
ReportProgress = Callable[[int, int], None]
"""Called after each check with how many were made, of how many."""


class ImportMark(NamedTuple):
    """How far the history that one import brought was checked."""

    scores: int
    """Scores from this position on came with imports whose days are not all checked; `NOTHING` where all are."""
    runs: int
    """The same of diagnoses."""
    begun_scores: int
    """Where scores ended when the check began that was cut off: what came later is not covered by `next_day`."""
    begun_runs: int
    next_day: int
    """Days since 1970 of the first day that this check has not looked at."""
    since: int
    """When the import or the check began, in seconds since 1970."""
    is_running: int
    """1 while the import or its check runs; 0 while its exchanges wait for the judge."""

    @property
    def is_pending(self) -> bool:
        """Whether days are left to check."""
        return self.scores != NONE_PENDING

    def is_held(self, now: datetime) -> bool:
        """Tell whether the import that made it is taken to be running."""
        return bool(self.is_running) and now - datetime.fromtimestamp(self.since, UTC) < MAX_IMPORT_AGE


@dataclass(frozen=True, slots=True)
class ProjectHistory:
    """The history that was brought to one project, and what checks of it found."""

    project: str
    days: tuple[date, ...]
    """The days that records came to and that are over, oldest first."""
    waiting: int
    """Exchanges on these days that wait for their first score: then nothing was checked."""
    checks: int
    """Days as of whose end the project was looked at."""
    last: CheckResult | None
    """The check as of the end of the last of these days; None where the policy has the project not audited."""
    incidents: tuple[Incident, ...]
    """Incidents that these checks opened or changed, as they are now, oldest first."""
    known_days: int
    """Days with data, brought or there before."""
    known_since: date
    """The first of them."""


class _ImportedDays(NamedTuple):
    days: list[date]
    unchecked: set[date]
    """Those that a check that was cut off has not looked at."""
    checked_at: datetime | None
    """The newest check of the project."""
    known_days: int
    known_since: date


class History:
    """Checks the history that imports bring. `now` dates marks and nothing else."""

    def __init__(self, watch: Watch, store: Store, now: Callable[[], datetime]) -> None:
        self._watch = watch
        self._store = store
        self._now = now

    def begin(self, target: str) -> None:
        """Note that an import into a project, or into `EVERY_PROJECT`, begins. What an earlier one left unchecked stays so."""
        with self._store.transaction() as transaction:
            mark = _decode_marks(transaction.watermarks(CONSUMER)).get(target)
            if mark is None or not mark.is_pending:
                ends = transaction.end_of("scores"), transaction.end_of("diagnoses")
                mark = ImportMark(*ends, *ends, next_day=0, since=0, is_running=0)
            transaction.set_watermarks(CONSUMER, _encode_mark(target, mark._replace(since=self._seconds(), is_running=1)))

    def pending(self) -> dict[str, ImportMark]:
        """The marks of imports that brought days which are not all checked, by what they filled."""
        with contextlib.closing(self._store.cursor()) as cursor:
            marks = _decode_marks(read_watermarks(cursor, CONSUMER))
        return {target: mark for target, mark in marks.items() if mark.is_pending}

    async def check(self, target: str, until: datetime, report: ReportProgress = lambda *_: None) -> list[ProjectHistory]:
        """Check the days that were brought and are over by a moment; a project without such days is left out.

        The check as of that moment itself is not made here.
        """
        mark = (await asyncio.to_thread(self.pending)).get(target)
        if mark is None:
            return []
        ends = self._store.end_of("scores"), self._store.end_of("diagnoses")
        brought = await asyncio.to_thread(self._read_brought, target, mark, until)
        if brought:  # who sums days takes the news of them from the rounds: so not for every batch of a follower
            await asyncio.to_thread(refresh_daily, self._store)
            brought = await asyncio.to_thread(self._read_brought, target, mark, until)
        waiting = await asyncio.to_thread(self._count_waiting, brought)
        if waiting and self._now() - datetime.fromtimestamp(mark.since, UTC) < MAX_SCORE_DELAY:
            await asyncio.to_thread(self._note, target, mark._replace(is_running=0))
            return [
                ProjectHistory(project, tuple(own.days), waiting.get(project, 0), 0, None, (), own.known_days, own.known_since)
                for project, own in brought.items()
            ]
        moments = _plan_checks(brought, until)
        first = min((day for own in brought.values() for day in own.unchecked), default=until.date())
        mark = ImportMark(mark.scores, mark.runs, *ends, (first - _EPOCH).days, self._seconds(), 1)
        await asyncio.to_thread(self._note, target, mark)
        checked: dict[str, list[CheckResult]] = defaultdict(list)
        for number, (moment, projects) in enumerate(moments, 1):
            for check in await self._watch.check(projects, moment):
                checked[check.project].append(check)
            mark = mark._replace(next_day=(moment.date() - _EPOCH).days)
            await asyncio.to_thread(self._note, target, mark)
            report(number, len(moments))
        await asyncio.to_thread(self._finish, target, mark)
        return await asyncio.to_thread(self._summarise, brought, checked)

    def _read_brought(self, target: str, mark: ImportMark, until: datetime) -> dict[str, _ImportedDays]:
        """Read the days that were brought, by project."""
        values: dict[str, Any] = {"project": None if target == EVERY_PROJECT else target, "until": midnight(until.date())}
        values |= {name: getattr(mark, name) for name in ("scores", "runs", "begun_scores", "begun_runs")}
        values["next_day"] = midnight(_EPOCH + timedelta(days=mark.next_day))
        brought: dict[str, _ImportedDays] = {}
        with contextlib.closing(self._store.cursor()) as cursor:
            for row in query_rows(cursor, "history_days", values):
                first = _ImportedDays([], set(), row["checked_at"], row["known_days"], row["known_since"])
                own = brought.setdefault(row["project"], first)
                own.days.append(row["day"])
                if row["is_unchecked"]:
                    own.unchecked.add(row["day"])
        return brought

    def _count_waiting(self, brought: Mapping[str, _ImportedDays]) -> dict[str, int]:
        """Count the exchanges on the days that were brought which wait for their first score, by project."""
        if not brought:
            return {}
        first, last = min(own.days[0] for own in brought.values()), max(own.days[-1] for own in brought.values())
        values = {"projects": list(brought), "since": midnight(first), "until": midnight(last + DAY)}
        with contextlib.closing(self._store.cursor()) as cursor:
            return {row["project"]: row["exchanges"] for row in query_rows(cursor, "waiting_exchanges", values)}

    def _finish(self, target: str, mark: ImportMark) -> None:
        """Note that everything up to the begin of a check is checked. An import that began meanwhile keeps what came since."""
        with self._store.transaction() as transaction:
            stored = _decode_marks(transaction.watermarks(CONSUMER))[target]
            done = mark._replace(scores=NONE_PENDING, is_running=0)
            if stored.since != mark.since:
                ends = mark.begun_scores, mark.begun_runs
                done = ImportMark(*ends, *ends, next_day=0, since=stored.since, is_running=stored.is_running)
            transaction.set_watermarks(CONSUMER, _encode_mark(target, done))

    def _note(self, target: str, mark: ImportMark) -> None:
        with self._store.transaction() as transaction:
            stored = _decode_marks(transaction.watermarks(CONSUMER))[target]
            is_another = stored.is_pending and stored.since > mark.since  # an import began while this check runs
            kept = mark._replace(since=stored.since, is_running=stored.is_running) if is_another else mark
            transaction.set_watermarks(CONSUMER, _encode_mark(target, kept))

    def _summarise(
        self, brought: Mapping[str, _ImportedDays], checked: Mapping[str, Sequence[CheckResult]]
    ) -> list[ProjectHistory]:
        """What the checks of each project found. What was opened before the check was cut off counts, too."""
        with contextlib.closing(self._store.cursor()) as cursor:
            stored = list(query_records(cursor, "watched_incidents", Incident, {"projects": list(brought)}))
        histories = []
        for project, own in brought.items():
            checks = checked.get(project, ())
            looks = [check for check in checks if check.project_check is not None]
            changed = {incident.incident_id for check in checks for incident in check.incidents}
            end = midnight(own.days[-1] + DAY)
            first, last = midnight(own.days[0]), max((check.as_of for check in checks), default=end)
            incidents = [
                incident
                for incident in stored
                if incident.project == project and (incident.incident_id in changed or first < incident.detected_at <= last)
            ]
            incidents.sort(key=lambda incident: (incident.detected_at, incident.incident_id))
            of_brought = [check for check in looks if check.as_of <= end]
            last_check = next(reversed(of_brought or looks or checks), None)
            histories.append(
                ProjectHistory(
                    project, tuple(own.days), 0, len(looks), last_check, tuple(incidents), own.known_days, own.known_since
                )
            )
        return histories

    def _seconds(self) -> int:
        return int(self._now().timestamp())


def _plan_checks(brought: Mapping[str, _ImportedDays], until: datetime) -> list[tuple[datetime, list[str]]]:
    """The moments as of which projects are to be checked, oldest first."""
    wanted: dict[datetime, set[str]] = defaultdict(set)
    for project, own in brought.items():
        for day in own.unchecked:
            wanted[midnight(day + DAY)].add(project)
        for moment in _ends_of_weeks_after(own.days):
            if moment <= until and (own.checked_at is None or moment > own.checked_at):
                wanted[moment].add(project)
    return [(moment, sorted(projects)) for moment, projects in sorted(wanted.items())]


def _ends_of_weeks_after(days: Iterable[date]) -> set[datetime]:
    """The ends of these days and of those after them, as long as a check sees data within the week before."""
    return {midnight(day + number * DAY) for day in days for number in range(1, DAYS)}


def _decode_marks(watermarks: Mapping[tuple[str, int], int]) -> dict[str, ImportMark]:
    rows: dict[str, dict[int, int]] = defaultdict(dict)
    for (target, place), value in watermarks.items():
        rows[target][place] = value
    return {target: ImportMark(*(values[place] for place in range(len(ImportMark._fields)))) for target, values in rows.items()}


def _encode_mark(target: str, mark: ImportMark) -> dict[tuple[str, int], int]:
    return {(target, place): value for place, value in enumerate(mark)}
