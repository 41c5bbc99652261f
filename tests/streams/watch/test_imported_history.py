"""The check of the days that an import brought: each as of its end, once, in order, whatever comes between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

import pytest
from support.builders import exchange
from support.watch_histories import END, ended_run, fallen, history, put, steady

from analytics.store.store import Outbox, Store
from audit.policy import Policy
from schemas.records import Score
from service.alerts.delivery import MAX_INCIDENT_AGE
from streams.log.sink import StorePublisher
from streams.watch.checking import CheckResult
from streams.watch.history import EVERY_PROJECT, MAX_IMPORT_AGE, History, ProjectHistory
from streams.watch.measures import MAX_SCORE_DELAY, midnight
from streams.watch.rounds import WatchRounds
from streams.watch.watching import Watch

DAY = timedelta(days=1)
MONTH = 22
NOW = END + 60 * DAY
"""Two months after the last day of the histories."""
INCIDENTS = "SELECT * EXCLUDE (_offset, _topic, _partition) FROM log.incidents ORDER BY incident_id, revision"


class KilledError(Exception):
    """Raised where the process is killed."""


class Importing:
    """A store with a clock that the test sets, into which imports bring scores. Records the times as of which it is checked."""

    def __init__(self, store: Store) -> None:
        self.now = NOW
        self.moments: list[datetime] = []
        self.stops_at = 0
        self.store = store
        self.watch = Watch(StorePublisher(store, Policy(), lambda: self.now))
        self._check = self.watch.check
        self.watch.check = self._noted  # type: ignore[method-assign]
        self.history = History(self.watch, store, lambda: self.now)
        self.rounds = WatchRounds(self.watch, store, lambda: self.now, lambda: True)

    def bring(self, scores: Sequence[Score], target: str = "ops") -> None:
        """Store what an import brings, before any check."""
        self.history.begin(target)
        put(self.store, "scores", scores)

    def check(self, target: str = "ops") -> list[ProjectHistory]:
        """Run the check at the end of an import."""
        self.moments = []
        return asyncio.run(self.history.check(target, self.now))

    def round(self) -> list[datetime]:
        """Run one round of a server's watch, and return the times as of which it checked."""
        self.moments = []
        asyncio.run(self.rounds.run())
        return self.moments

    def incidents(self) -> list[tuple[object, ...]]:
        """Return every revision of every incident."""
        return self.store.cursor().execute(INCIDENTS).fetchall()

    async def _noted(self, projects: Sequence[str], as_of: datetime | None = None) -> list[CheckResult]:
        if len(self.moments) + 1 == self.stops_at:
            raise KilledError
        self.moments.append(as_of or self.now)
        return await self._check(projects, as_of)


@pytest.fixture
def store() -> Iterator[Store]:
    """Return an empty store."""
    with Store(None) as opened:
        yield opened


def test_each_imported_day_and_the_following_week_are_checked_as_of_their_end(store: Store) -> None:
    """A watch that had run at that time would have checked exactly these days."""
    importing = Importing(store)
    importing.bring(history(fallen(4), MONTH))
    (check,) = importing.check()
    first, last = midnight((END - MONTH * DAY).date()), midnight(END.date())
    assert importing.moments == [first + number * DAY for number in range(1, MONTH + 7)]
    assert len(check.days) == MONTH + 1
    assert check.days[0] == first.date()
    assert check.days[-1] == last.date()
    (incident,) = check.incidents
    assert incident.tier == "tier2"
    assert incident.direction == "down"
    assert incident.status == "open"
    assert END - 4 * DAY < incident.detected_at <= midnight(END.date())


def test_a_dip_that_recovered_ends_on_its_day(store: Store) -> None:
    """A history has the ends of changes as well as their beginnings."""
    importing = Importing(store)
    importing.bring(history(lambda back: 0.45 if 4 <= back < 7 else 0.85, MONTH))
    (check,) = importing.check()
    (incident,) = check.incidents
    assert incident.status == "resolved"
    assert incident.resolution == "recovered"
    assert incident.last_day == midnight((END - 4 * DAY).date())
    assert incident.resolved_at is not None
    assert incident.resolved_at < END


def test_checked_days_are_not_checked_again(store: Store) -> None:
    """An import of known records brings no days; an import of one day brings that day."""
    importing = Importing(store)
    importing.bring(history(fallen(4), MONTH))
    importing.check()
    before = importing.incidents()
    importing.bring(history(fallen(4), MONTH))
    assert importing.check() == []
    assert importing.moments == []
    assert importing.incidents() == before
    importing.bring(history(steady, 0, end=END - 20 * DAY, name="-more"))
    importing.check()
    assert importing.moments == [midnight((END - 19 * DAY).date())]


@pytest.mark.parametrize("stops_at", [1, 21, 26])
def test_an_interrupted_check_continues_with_the_next_day(store: Store, stops_at: int) -> None:
    """No day is repeated or skipped, and the incidents equal those of an undisturbed check."""
    with Store(None) as other:
        undisturbed = Importing(other)
        undisturbed.bring(history(fallen(4), MONTH))
        undisturbed.check()
        expected, moments = undisturbed.incidents(), undisturbed.moments
    importing = Importing(store)
    importing.bring(history(fallen(4), MONTH))
    importing.stops_at = stops_at
    with pytest.raises(KilledError):
        importing.check()
    checked_moments = importing.moments
    importing.stops_at = 0
    importing.bring([])
    (check,) = importing.check()
    assert moments == checked_moments + importing.moments
    assert importing.incidents() == expected
    assert [incident.incident_id for incident in check.incidents] == sorted({row[0] for row in expected})


def test_an_import_after_a_killed_one_has_its_own_days_checked(store: Store) -> None:
    """These days may be earlier than the day at which the killed check stopped."""
    importing = Importing(store)
    importing.bring(history(steady, 10))
    importing.stops_at = 6
    with pytest.raises(KilledError):
        importing.check()
    importing.stops_at = 0
    importing.bring(history(steady, 3, end=END - 20 * DAY, name="-earlier"))
    importing.check()
    earlier = {midnight((END - back * DAY).date()) for back in range(19, 23)}
    later = {midnight((END - back * DAY).date()) for back in range(-1, 5)}
    assert earlier | later <= set(importing.moments)


def test_days_of_other_projects_and_unfinished_days_are_skipped(store: Store) -> None:
    """Records that senders deliver meanwhile are not history."""
    importing = Importing(store)
    importing.now = END
    importing.bring([*history(steady, 2), *history(steady, 2, project="web")])
    (check,) = importing.check()
    assert check.project == "ops"
    assert len(check.days) == 2


def test_the_days_of_all_projects_of_an_export_are_checked_together(store: Store) -> None:
    """An export names its projects; fifty of them are read in one scan."""
    importing = Importing(store)
    importing.bring([*history(fallen(4), MONTH), *history(steady, MONTH, project="web")], EVERY_PROJECT)
    incident_counts = {check_result.project: len(check_result.incidents) for check_result in importing.check(EVERY_PROJECT)}
    assert incident_counts == {"ops": 1, "web": 0}
    assert len(importing.moments) == MONTH + 6


def test_runs_alone_bring_days(store: Store) -> None:
    """Transcripts of some agents have no exchanges to score."""
    importing = Importing(store)
    importing.history.begin("ops")
    put(store, "diagnoses", [ended_run(f"r-{back}", END - back * DAY, event_count=9, project="ops") for back in range(3)])
    (check,) = importing.check()
    assert len(check.days) == 3


def test_nothing_is_checked_while_exchanges_wait_for_the_judge(store: Store) -> None:
    """Incomplete tiers would be compared otherwise. The server checks them once they are judged, or after a day."""
    importing = Importing(store)
    importing.bring(history(fallen(4), MONTH))
    at = END - 3 * DAY
    put(store, "exchanges", [exchange("late", 1, project="ops", occurred_at=at, ingested_at=NOW)])
    (check,) = importing.check()
    assert check.waiting == 1
    assert check.checks == 0
    assert importing.moments == []
    assert importing.round() == []
    importing.now += MAX_SCORE_DELAY
    assert len([moment for moment in importing.round() if moment < NOW]) == MONTH + 6
    assert importing.incidents()


def test_rounds_skip_a_project_while_an_import_fills_it(store: Store) -> None:
    """Half of a history looks like a change. A killed import delays the project for an hour."""
    importing = Importing(store)
    importing.now = END
    importing.bring(history(steady, 2))
    assert importing.round() == []
    importing.now += MAX_IMPORT_AGE
    yesterday, today = midnight((END - DAY).date()), midnight(END.date())
    assert importing.round() == [yesterday, today, importing.now]
    assert importing.history.pending() == {}


def test_past_history_alerts_nobody_and_an_ongoing_change_alerts_once(store: Store) -> None:
    """Nobody wants to be paged at night for a fall in spring."""
    importing = Importing(store)
    importing.now = END
    importing.bring(history(fallen(4), MONTH, project="web"), "web")
    importing.check("web")
    asyncio.run(importing.watch.check(["web"]))
    assert [incident.project for incident in Outbox(store).find_unalerted(importing.now - MAX_INCIDENT_AGE, importing.now)] == [
        "web"
    ]
    importing.now = NOW
    importing.bring(history(fallen(4), MONTH))
    (check,) = importing.check()
    asyncio.run(importing.watch.check(["ops"]))
    assert check.incidents
    assert list(Outbox(store).find_unalerted(importing.now - MAX_INCIDENT_AGE, importing.now)) == []


def test_history_before_a_live_project_changes_none_of_its_incidents(store: Store) -> None:
    """A check of the past must not undo the incidents and checks of the live watch."""
    importing = Importing(store)
    importing.now = END
    put(store, "scores", history(fallen(4), MONTH))
    importing.round()
    before = importing.incidents()
    assert before
    importing.bring(history(steady, 10, end=END - (MONTH + 1) * DAY, name="-earlier"))
    (check,) = importing.check()
    assert check.checks == 11
    assert check.incidents == ()
    assert importing.incidents() == before
    ((checked_at,),) = store.cursor().execute("SELECT checked_at FROM log.project_checks").fetchall()
    assert checked_at == END.replace(tzinfo=None)


def test_a_check_of_the_past_ignores_later_baselines(store: Store) -> None:
    """A server's watch remembers its latest baseline, which may be of this hour."""
    importing = Importing(store)
    importing.now = END
    put(store, "scores", history(steady, 10))
    asyncio.run(importing.watch.check(["ops"]))
    (checked,) = asyncio.run(importing.watch.check(["ops"], END - 5 * DAY))
    assert checked.baseline is not None
    assert checked.baseline.computed_at == END - 5 * DAY
