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
from service.alerts.delivery import RECENT
from streams.log.sink import StorePublisher
from streams.watch.checking import Checked
from streams.watch.history import ABANDONED, EVERY_PROJECT, History, ProjectHistory
from streams.watch.measures import WAITED, midnight
from streams.watch.rounds import WatchRounds
from streams.watch.watching import Watch

DAY = timedelta(days=1)
MONTH = 22
NOW = END + 60 * DAY
"""Two months after the last day of the histories."""
INCIDENTS = "SELECT * EXCLUDE (_offset, _topic, _partition) FROM log.incidents ORDER BY incident_id, revision"


class KilledError(Exception):
    """The process was killed."""


class Importing:
    """A store with a clock that is set, into which imports bring scores. Notes the moments as of which it is checked."""

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
        """What an import takes in, before it checks anything."""
        self.history.begin(target)
        put(self.store, "scores", scores)

    def check(self, target: str = "ops") -> list[ProjectHistory]:
        """The check at an import's end."""
        self.moments = []
        return asyncio.run(self.history.check(target, self.now))

    def round(self) -> list[datetime]:
        """A round of a server's watch; the moments as of which it checked."""
        self.moments = []
        asyncio.run(self.rounds.run())
        return self.moments

    def incidents(self) -> list[tuple[object, ...]]:
        """Every revision of every incident."""
        return self.store.cursor().execute(INCIDENTS).fetchall()

    async def _noted(self, projects: Sequence[str], as_of: datetime | None = None) -> list[Checked]:
        if len(self.moments) + 1 == self.stops_at:
            raise KilledError
        self.moments.append(as_of or self.now)
        return await self._check(projects, as_of)


@pytest.fixture
def store() -> Iterator[Store]:
    """Return an empty store."""
    with Store(None) as opened:
        yield opened


def test_each_day_is_checked_as_of_its_end_and_those_of_the_week_after_it(store: Store) -> None:
    """A watch that had run then would have looked on these days, and on no others."""
    importing = Importing(store)
    importing.bring(history(fallen(4), MONTH))
    (found,) = importing.check()
    first, last = midnight((END - MONTH * DAY).date()), midnight(END.date())
    assert importing.moments == [first + number * DAY for number in range(1, MONTH + 7)]
    assert len(found.days) == MONTH + 1
    assert found.days[0] == first.date()
    assert found.days[-1] == last.date()
    (incident,) = found.incidents
    assert incident.tier == "tier2"
    assert incident.direction == "down"
    assert incident.status == "open"
    assert END - 4 * DAY < incident.detected_at <= midnight(END.date())


def test_a_dip_that_was_mended_is_over_on_its_day(store: Store) -> None:
    """A history has ends as well as beginnings."""
    importing = Importing(store)
    importing.bring(history(lambda back: 0.45 if 4 <= back < 7 else 0.85, MONTH))
    (found,) = importing.check()
    (incident,) = found.incidents
    assert incident.status == "resolved"
    assert incident.resolution == "recovered"
    assert incident.last_day == midnight((END - 4 * DAY).date())
    assert incident.resolved_at is not None
    assert incident.resolved_at < END


def test_what_was_checked_is_not_checked_again(store: Store) -> None:
    """An import of known records brings no days, and one of a single day brings that."""
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
def test_a_check_that_is_cut_off_goes_on_with_the_day_after(store: Store, stops_at: int) -> None:
    """No day twice and none left out, and the incidents are those of a check that nobody disturbed."""
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
    done = importing.moments
    importing.stops_at = 0
    importing.bring([])
    (found,) = importing.check()
    assert moments == done + importing.moments
    assert importing.incidents() == expected
    assert [incident.incident_id for incident in found.incidents] == sorted({row[0] for row in expected})


def test_an_import_after_one_that_was_killed_has_its_own_days_checked_too(store: Store) -> None:
    """They may lie before the day at which the check was cut off."""
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


def test_days_of_another_project_and_days_that_are_not_over_are_left_out(store: Store) -> None:
    """What senders deliver meanwhile is not history."""
    importing = Importing(store)
    importing.now = END
    importing.bring([*history(steady, 2), *history(steady, 2, project="web")])
    (found,) = importing.check()
    assert found.project == "ops"
    assert len(found.days) == 2


def test_an_export_of_ours_has_the_days_of_all_its_projects_checked_together(store: Store) -> None:
    """It names its projects itself; fifty of them are read in one scan."""
    importing = Importing(store)
    importing.bring([*history(fallen(4), MONTH), *history(steady, MONTH, project="web")], EVERY_PROJECT)
    found = {one.project: len(one.incidents) for one in importing.check(EVERY_PROJECT)}
    assert found == {"ops": 1, "web": 0}
    assert len(importing.moments) == MONTH + 6


def test_runs_alone_bring_days(store: Store) -> None:
    """Transcripts of some agents have no exchanges that are scored."""
    importing = Importing(store)
    importing.history.begin("ops")
    put(store, "diagnoses", [ended_run(f"r-{back}", END - back * DAY, event_count=9, project="ops") for back in range(3)])
    (found,) = importing.check()
    assert len(found.days) == 3


def test_nothing_is_checked_while_exchanges_wait_for_the_judge(store: Store) -> None:
    """Its tiers would be compared without what it has yet to say. The server checks them when it has, or after a day."""
    importing = Importing(store)
    importing.bring(history(fallen(4), MONTH))
    at = END - 3 * DAY
    put(store, "exchanges", [exchange("late", 1, project="ops", occurred_at=at, ingested_at=NOW)])
    (found,) = importing.check()
    assert found.waiting == 1
    assert found.checks == 0
    assert importing.moments == []
    assert importing.round() == []
    importing.now += WAITED
    assert len([moment for moment in importing.round() if moment < NOW]) == MONTH + 6
    assert importing.incidents()


def test_rounds_leave_a_project_alone_while_an_import_fills_it(store: Store) -> None:
    """Half of a history looks like a change. An import that was killed holds it up for an hour."""
    importing = Importing(store)
    importing.now = END
    importing.bring(history(steady, 2))
    assert importing.round() == []
    importing.now += ABANDONED
    yesterday, today = midnight((END - DAY).date()), midnight(END.date())
    assert importing.round() == [yesterday, today, importing.now]
    assert importing.history.pending() == {}


def test_history_that_ended_alerts_nobody_and_what_goes_on_does_once(store: Store) -> None:
    """Nobody is called at night for a fall of the spring."""
    importing = Importing(store)
    importing.now = END
    importing.bring(history(fallen(4), MONTH, project="web"), "web")
    importing.check("web")
    asyncio.run(importing.watch.check(["web"]))
    assert [incident.project for incident in Outbox(store).untold(importing.now - RECENT)] == ["web"]
    importing.now = NOW
    importing.bring(history(fallen(4), MONTH))
    (found,) = importing.check()
    asyncio.run(importing.watch.check(["ops"]))
    assert found.incidents
    assert list(Outbox(store).untold(importing.now - RECENT)) == []


def test_history_before_a_live_project_changes_none_of_its_incidents(store: Store) -> None:
    """What the watch saw live is not to be undone by a look back, nor are its checks."""
    importing = Importing(store)
    importing.now = END
    put(store, "scores", history(fallen(4), MONTH))
    importing.round()
    before = importing.incidents()
    assert before
    importing.bring(history(steady, 10, end=END - (MONTH + 1) * DAY, name="-earlier"))
    (found,) = importing.check()
    assert found.checks == 11
    assert found.incidents == ()
    assert importing.incidents() == before
    ((checked_at,),) = store.cursor().execute("SELECT checked_at FROM log.project_checks").fetchall()
    assert checked_at == END.replace(tzinfo=None)


def test_a_look_back_compares_with_no_baseline_of_later_days(store: Store) -> None:
    """A server's watch remembers the baseline that it published last, which may be of this very hour."""
    importing = Importing(store)
    importing.now = END
    put(store, "scores", history(steady, 10))
    asyncio.run(importing.watch.check(["ops"]))
    (checked,) = asyncio.run(importing.watch.check(["ops"], END - 5 * DAY))
    assert checked.baseline is not None
    assert checked.baseline.computed_at == END - 5 * DAY
