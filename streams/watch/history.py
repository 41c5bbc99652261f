"""The check of history: an import adds days that no watch has seen, and each of them is checked as of its end.

1. Before an import writes records, `begin` notes the ends of scores and diagnoses. The days of later records were imported. `check` checks
   them as of their ends (midnight UTC), oldest first, and so opens and closes incidents on the days on which a watch would have done it.
   A day that is not over is left to the normal check.
2. A watch also checks days without data if there is data within the week before. So does this check, but only after the newest check of
   the project: a check that looks back revises no incident, and can only open those that the new records show.
3. Progress is stored after each day. If the import or the check is interrupted, the next import, `check-drift` or server continues with the
   next day. Checking a day again would make the same records.
4. While imported exchanges wait for the server's judge, nothing is checked, because their tiers would be incomplete. The rounds of the
   server check them once they have scores, or after a day.
5. Alerts are only sent for findings of the last day (`service.alerts.delivery`), so history that has ended raises none.
6. While an import runs, the rounds skip its project. An import that has not ended after an hour is assumed to have been killed.
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
"""The consumer whose watermarks store the marks of imports: the topic is the import's target, the partition the index in `ImportMark`."""
EVERY_PROJECT = ""
"""The target of an import that fills the projects that its records name."""
MAX_IMPORT_AGE = timedelta(hours=1)
"""An import that has not ended after this time is assumed to have been killed."""
NONE_PENDING = -1
"""The position of a mark whose days are all checked."""
_EPOCH = date(1970, 1, 1)
ReportProgress = Callable[[int, int], None]
"""Called after each check with the number of checks so far and their total number."""


class ImportMark(NamedTuple):
    """The progress of the check of one import's history."""

    scores: int
    """The position from which on scores were imported whose days are not all checked; `NONE_PENDING` if all are."""
    runs: int
    """The same position for diagnoses."""
    begun_scores: int
    """The end of the scores when the check began; `next_day` does not apply to later ones."""
    begun_runs: int
    """The same position for diagnoses."""
    next_day: int
    """The first unchecked day, in days since 1970."""
    since: int
    """The time when the import or the check began, in seconds since 1970."""
    is_running: int
    """1 while the import or its check runs; 0 while its exchanges wait for the judge."""

    @property
    def is_pending(self) -> bool:
        """True if days are left to check."""
        return self.scores != NONE_PENDING

    def is_held(self, now: datetime) -> bool:
        """Return whether the import is assumed to be running."""
        return bool(self.is_running) and now - datetime.fromtimestamp(self.since, UTC) < MAX_IMPORT_AGE


@dataclass(frozen=True, slots=True)
class ProjectHistory:
    """The imported history of one project, and the results of its checks."""

    project: str
    days: tuple[date, ...]
    """The imported days that are over, oldest first."""
    waiting: int
    """Exchanges on these days that wait for their first score; if there are any, nothing was checked."""
    checks: int
    """The number of checks."""
    last: CheckResult | None
    """The check as of the end of the last imported day; None if the project is not audited."""
    incidents: tuple[Incident, ...]
    """The latest revisions of the incidents that the checks opened or changed, oldest first."""
    known_days: int
    """The number of days with data, imported or not."""
    known_since: date
    """The first day with data."""


class _ImportedDays(NamedTuple):
    days: list[date]
    unchecked: set[date]
    """The days that an interrupted check has not checked."""
    checked_at: datetime | None
    """The newest check of the project."""
    known_days: int
    known_since: date


class History:
    """Checks imported history. `now` only dates the marks."""

    def __init__(self, watch: Watch, store: Store, now: Callable[[], datetime]) -> None:
        self._watch = watch
        self._store = store
        self._now = now

    def begin(self, target: str) -> None:
        """Note that an import into a project, or into `EVERY_PROJECT`, begins. Unchecked days of earlier imports stay pending."""
        with self._store.transaction() as transaction:
            mark = _decode_marks(transaction.watermarks(CONSUMER)).get(target)
            if mark is None or not mark.is_pending:
                ends = transaction.end_of("scores"), transaction.end_of("diagnoses")
                mark = ImportMark(*ends, *ends, next_day=0, since=0, is_running=0)
            transaction.set_watermarks(CONSUMER, _encode_mark(target, mark._replace(since=self._seconds(), is_running=1)))

    def pending(self) -> dict[str, ImportMark]:
        """Return the marks of imports with unchecked days, by target."""
        with contextlib.closing(self._store.cursor()) as cursor:
            marks = _decode_marks(read_watermarks(cursor, CONSUMER))
        return {target: mark for target, mark in marks.items() if mark.is_pending}

    async def check(self, target: str, until: datetime, report: ReportProgress = lambda *_: None) -> list[ProjectHistory]:
        """Check the imported days that are over at a moment. Projects without such days are left out.

        The check as of that moment itself is left to the caller.
        """
        mark = (await asyncio.to_thread(self.pending)).get(target)
        if mark is None:
            return []
        ends = self._store.end_of("scores"), self._store.end_of("diagnoses")
        imported = await asyncio.to_thread(self._read_imported, target, mark, until)
        if imported:  # not for every batch of a following import, because updating the sums hides the new days from the rounds
            await asyncio.to_thread(refresh_daily, self._store)
            imported = await asyncio.to_thread(self._read_imported, target, mark, until)
        waiting = await asyncio.to_thread(self._count_waiting, imported)
        if waiting and self._now() - datetime.fromtimestamp(mark.since, UTC) < MAX_SCORE_DELAY:
            await asyncio.to_thread(self._note, target, mark._replace(is_running=0))
            return [
                ProjectHistory(
                    project,
                    tuple(project_days.days),
                    waiting.get(project, 0),
                    0,
                    None,
                    (),
                    project_days.known_days,
                    project_days.known_since,
                )
                for project, project_days in imported.items()
            ]
        moments = _plan_checks(imported, until)
        first = min((day for project_days in imported.values() for day in project_days.unchecked), default=until.date())
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
        return await asyncio.to_thread(self._summarise, imported, checked)

    def _read_imported(self, target: str, mark: ImportMark, until: datetime) -> dict[str, _ImportedDays]:
        """Read the imported days by project."""
        values: dict[str, Any] = {"project": None if target == EVERY_PROJECT else target, "until": midnight(until.date())}
        values |= {name: getattr(mark, name) for name in ("scores", "runs", "begun_scores", "begun_runs")}
        values["next_day"] = midnight(_EPOCH + timedelta(days=mark.next_day))
        imported: dict[str, _ImportedDays] = {}
        with contextlib.closing(self._store.cursor()) as cursor:
            for row in query_rows(cursor, "history_days", values):
                first = _ImportedDays([], set(), row["checked_at"], row["known_days"], row["known_since"])
                project_days = imported.setdefault(row["project"], first)
                project_days.days.append(row["day"])
                if row["is_unchecked"]:
                    project_days.unchecked.add(row["day"])
        return imported

    def _count_waiting(self, imported: Mapping[str, _ImportedDays]) -> dict[str, int]:
        """Count the exchanges on the imported days that wait for their first score, by project."""
        if not imported:
            return {}
        first, last = (
            min(project_days.days[0] for project_days in imported.values()),
            max(project_days.days[-1] for project_days in imported.values()),
        )
        values = {"projects": list(imported), "since": midnight(first), "until": midnight(last + DAY)}
        with contextlib.closing(self._store.cursor()) as cursor:
            return {row["project"]: row["exchanges"] for row in query_rows(cursor, "waiting_exchanges", values)}

    def _finish(self, target: str, mark: ImportMark) -> None:
        """Note that everything before the beginning of a check is checked. The days of an import that began since then stay pending."""
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
            if stored.is_pending and stored.since > mark.since:  # another import has begun since the check began
                mark = mark._replace(since=stored.since, is_running=stored.is_running)
            transaction.set_watermarks(CONSUMER, _encode_mark(target, mark))

    def _summarise(
        self, imported: Mapping[str, _ImportedDays], checked: Mapping[str, Sequence[CheckResult]]
    ) -> list[ProjectHistory]:
        """Return the results of the checks by project, including the incidents of an interrupted check."""
        with contextlib.closing(self._store.cursor()) as cursor:
            stored = list(query_records(cursor, "watched_incidents", Incident, {"projects": list(imported)}))
        histories = []
        for project, project_days in imported.items():
            checks = checked.get(project, ())
            completed_checks = [check for check in checks if check.project_check is not None]
            changed = {incident.incident_id for check in checks for incident in check.incidents}
            end = midnight(project_days.days[-1] + DAY)
            first, last = midnight(project_days.days[0]), max((check.as_of for check in checks), default=end)
            incidents = [
                incident
                for incident in stored
                if incident.project == project and (incident.incident_id in changed or first < incident.detected_at <= last)
            ]
            incidents.sort(key=lambda incident: (incident.detected_at, incident.incident_id))
            checks_of_imported = [check for check in completed_checks if check.as_of <= end]
            last_check = next(reversed(checks_of_imported or completed_checks or checks), None)
            histories.append(
                ProjectHistory(
                    project,
                    tuple(project_days.days),
                    0,
                    len(completed_checks),
                    last_check,
                    tuple(incidents),
                    project_days.known_days,
                    project_days.known_since,
                )
            )
        return histories

    def _seconds(self) -> int:
        return int(self._now().timestamp())


def _plan_checks(imported: Mapping[str, _ImportedDays], until: datetime) -> list[tuple[datetime, list[str]]]:
    """Return the moments of the checks with their projects, oldest first."""
    checks: dict[datetime, set[str]] = defaultdict(set)
    for project, project_days in imported.items():
        for day in project_days.unchecked:
            checks[midnight(day + DAY)].add(project)
        for moment in _ends_of_weeks_after(project_days.days):
            if moment <= until and (project_days.checked_at is None or moment > project_days.checked_at):
                checks[moment].add(project)
    return [(moment, sorted(projects)) for moment, projects in sorted(checks.items())]


def _ends_of_weeks_after(days: Iterable[date]) -> set[datetime]:
    """Return the ends of these days and of the days after them for which a check sees data within the week before."""
    return {midnight(day + number * DAY) for day in days for number in range(1, DAYS)}


def _decode_marks(watermarks: Mapping[tuple[str, int], int]) -> dict[str, ImportMark]:
    by_target: dict[str, dict[int, int]] = defaultdict(dict)
    for (target, index), value in watermarks.items():
        by_target[target][index] = value
    fields = range(len(ImportMark._fields))
    return {target: ImportMark(*(values[index] for index in fields)) for target, values in by_target.items()}


def _encode_mark(target: str, mark: ImportMark) -> dict[tuple[str, int], int]:
    return {(target, index): value for index, value in enumerate(mark)}
