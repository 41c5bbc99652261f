"""Delivering alerts: the periodic task that raises alerts about new incidents and posts what waits in the outbox.

1. Incidents are found by looking: those that are live, that the project wants alerts about, and that have none yet. So none is lost
   to a kill between the two.
2. Few alerts that are due go out one by one; when there are many, one digest holds them all: at the end of quiet hours, or when a
   whole fleet falls silent.
3. An alert is delivered at least once: a kill between the post and its note sends it again, under the same id.
4. A judge whose answers cannot be read raises one alert, until it answers again.
5. A receiver that fails is left alone for the rest of the run, and holds up no other channel.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from datetime import datetime, timedelta

import msgspec

from analytics.store.outbox import DELIVERED, GIVEN_UP
from schemas.lazy.httpx2 import httpx2
from schemas.records import Alert
from service.alerts.channels import Channel
from service.alerts.notices import incident_notice, judge_notice
from service.alerts.posting import open_client, post
from service.alerts.raising import Alerts
from service.alerts.retrying import MOST_ATTEMPTS, Outcome, pause
from service.read.unreadable_judges import UnreadableJudge, unreadable_judges

INTERVAL_SECONDS = 5.0
RECENT = timedelta(days=1)
"""Older incidents raise no alert: a database that is filled again must not raise alerts about history."""
MOST_SINGLE = 5
"""Alerts that are sent one by one; more that are due at once form a digest."""
Chance = Callable[[], float]
_CHANCE: Chance = random.SystemRandom().random
log = logging.getLogger(__name__)


class Delivery:
    """The periodic task `alerts`. `chance` gives numbers from 0 to 1."""

    name = "alerts"
    interval = INTERVAL_SECONDS

    def __init__(self, alerts: Alerts, chance: Chance = _CHANCE) -> None:
        self._alerts = alerts
        self._chance = chance
        self._judgements = 0
        """The end of the topic judgements when judges were last looked at."""

    async def run(self) -> None:
        """Raise alerts about new incidents, then try the alerts that are due."""
        if not self._alerts.channels:
            return
        await self._tell_of_incidents()
        await self._tell_of_judges()
        due = await asyncio.to_thread(self._alerts.outbox.due, self._alerts.now())
        if not due:
            return
        await self._give_up_orphans(due)
        async with open_client() as client:
            channels = self._alerts.channels
            await asyncio.gather(*(self._deliver(client, one, [a for a in due if a.channel == one.name]) for one in channels))

    async def _tell_of_incidents(self) -> None:
        since = self._alerts.now() - RECENT
        incidents = await asyncio.to_thread(self._alerts.outbox.untold, since)
        await self._alerts.raise_alerts([incident_notice(one) for one in incidents if self._alerts.wants(one)])

    async def _tell_of_judges(self) -> None:
        end = self._alerts.store.end_of("judgements")
        if end != self._judgements:
            await self._alerts.raise_alerts([judge_notice(one) for one in await asyncio.to_thread(self._unreadable_judges)])
            self._judgements = end

    def _unreadable_judges(self) -> tuple[UnreadableJudge, ...]:
        with closing(self._alerts.store.cursor()) as cursor:
            return unreadable_judges(cursor, None, self._alerts.now())

    async def _give_up_orphans(self, due: Sequence[Alert]) -> None:
        """Settle alerts for a channel that the settings no longer name."""
        names = {channel.name for channel in self._alerts.channels}
        orphans = [alert for alert in due if alert.channel not in names]
        if orphans:
            outcome = Outcome("never", "the settings no longer name this channel")
            await asyncio.to_thread(self._note, orphans, outcome, tried=False)

    async def _deliver(self, client: httpx2.AsyncClient, channel: Channel, due: Sequence[Alert]) -> None:
        for alerts in _letters(due):
            letter = channel.letter(alerts, self._alerts.now())
            outcome = await post(client, channel, letter, self._alerts.now)
            await asyncio.to_thread(self._note, alerts, outcome)
            if outcome.verdict == "later":
                return

    def _note(self, alerts: Sequence[Alert], outcome: Outcome, *, tried: bool = True) -> None:
        """Record the result of an attempt at these alerts."""
        now = self._alerts.now()
        noted = [self._noted(alert, outcome, now, tried=tried) for alert in alerts]
        self._alerts.outbox.settle(noted)
        given_up = [alert for alert in noted if alert.status == GIVEN_UP]
        for alert in given_up[:MOST_SINGLE]:
            log.error("alert %s was given up after %d tries: %s", alert.alert_id, alert.attempts, alert.last_error)
        if len(given_up) > MOST_SINGLE:
            log.error("%d more alerts were given up with it", len(given_up) - MOST_SINGLE)

    def _noted(self, alert: Alert, outcome: Outcome, now: datetime, *, tried: bool) -> Alert:
        attempts = alert.attempts + tried
        changed = msgspec.structs.replace(alert, attempts=attempts, last_error=outcome.reason)
        if outcome.verdict == "delivered":
            return msgspec.structs.replace(changed, status=DELIVERED, settled_at=now)
        if outcome.verdict == "never" or attempts >= MOST_ATTEMPTS:
            return msgspec.structs.replace(changed, status=GIVEN_UP, settled_at=now)
        again = now + timedelta(seconds=pause(attempts, self._chance(), outcome.retry_after))
        return msgspec.structs.replace(changed, not_before=self._alerts.not_before(alert.severity, again))


def _letters(due: Sequence[Alert]) -> Iterator[Sequence[Alert]]:
    """Group the alerts that go into one message each."""
    if len(due) > MOST_SINGLE:
        yield due
    else:
        yield from ([alert] for alert in due)
