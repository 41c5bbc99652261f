"""Raising and delivering alerts: a notice becomes one entry of the outbox per channel; a periodic task raises and posts alerts.

1. Each run queries for live incidents that have no alert yet and whose project wants one, so a kill between incident and alert
   loses none.
2. A few due alerts are sent one by one; many are sent as one digest, for instance after quiet hours or when a whole fleet falls silent.
3. An alert is delivered at least once: after a kill between the post and its record, it is sent again under the same id.
4. A judge whose answers cannot be read raises one alert until it answers again.
5. A failing receiver is skipped for the rest of the run and delays no other channel. A failed alert is retried later, or given up.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from analytics.store.outbox import DELIVERED, GIVEN_UP, WAITING, Outbox
from analytics.store.store import Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.lazy import httpx2
from schemas.records import Alert, Incident
from service.alerts.channels import Channel, Outcome, channels_of, open_client, post
from service.alerts.notices import Notice, incident_notice, judge_notice
from service.read.judges import UnreadableJudge, unreadable_judges
from service.setup.settings import QuietHours, Settings, quiet_hours_of
from service.setup.workspace import Clock
from streams.engine.record_intake import RecordIntake
from streams.watch.lifecycle import CONFIRMED

FIRST_SECONDS = 5.0
LONGEST_SECONDS = 3600.0
LONGEST_WAIT_SECONDS = 6 * 3600.0
"""The longest wait that a receiver can request."""
MOST_ATTEMPTS = 15
"""Attempts before an alert is given up: over about five hours, unless the receiver asks for pauses."""


def pause(attempts: int, chance: float, retry_after: float | None) -> float:
    """Return the seconds until the next attempt, after a number of attempts.

    They double from FIRST_SECONDS to LONGEST_SECONDS. `chance`, from 0 to 1, subtracts up to half, so that deliveries that failed together
    are not retried together. The pause is never shorter than the receiver requested.
    """
    grown = min(FIRST_SECONDS * 2.0 ** min(max(attempts, 1) - 1, 32), LONGEST_SECONDS)
    return max(grown * (0.5 + chance / 2), min(retry_after or 0.0, LONGEST_WAIT_SECONDS))


INTERVAL_SECONDS = 5.0
RECENT = timedelta(days=1)
"""Older incidents raise no alert, so that refilling a database does not raise alerts about history."""
MOST_SINGLE = 5
"""Maximum number of due alerts that are sent one by one; more form a digest."""
Chance = Callable[[], float]
_CHANCE: Chance = random.SystemRandom().random
log = logging.getLogger(__name__)


class Delivery:
    """The periodic task `alerts`. `chance` returns random numbers from 0 to 1."""

    name = "alerts"
    interval = INTERVAL_SECONDS

    def __init__(self, alerts: Alerts, chance: Chance = _CHANCE) -> None:
        self._alerts = alerts
        self._chance = chance
        self._judgements = 0
        """The end of the topic `judgements` at the last check of judges."""

    async def run(self) -> None:
        """Raise alerts about new incidents, then deliver due alerts."""
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
        """Settle alerts for channels that are no longer in the settings."""
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
    """Group due alerts into messages."""
    if len(due) > MOST_SINGLE:
        yield due
    else:
        yield from ([alert] for alert in due)


Held = Literal["warning", "all"]
"""Alerts held until the end of the quiet hours: only warnings, or all."""


class Alerts:
    """Puts notices into the outbox. Without a channel it does nothing."""

    def __init__(
        self,
        store: Store,
        channels: Sequence[Channel],
        redactor: Redactor,
        now: Clock,
        *,
        quiet: QuietHours | None = None,
        held: Held = "warning",
        policy: Policy | None = None,
    ) -> None:
        self.channels = tuple(channels)
        self.store = store
        self.outbox = Outbox(store)
        self.now = now
        self._redactor = redactor
        self._quiet = quiet
        self._held = held
        self._policy = policy

    async def raise_alerts(self, notices: Sequence[Notice]) -> int:
        """Queue these alerts; durable on return. Repeated alerts are left out, so that raising twice changes nothing.

        Returns the number of new entries in the outbox.
        """
        if not self.channels or not notices:
            return 0
        return await asyncio.to_thread(lambda: self.outbox.put(self._entries(notices)))

    def wants(self, incident: Incident) -> bool:
        """Tell whether an incident raises an alert: if confirmed, or if suspected and the project's policy says so."""
        if incident.confidence == CONFIRMED:
            return True
        return self._policy is not None and self._policy.for_project(incident.project).settings.alert_on_suspected

    def not_before(self, severity: str, moment: datetime) -> datetime:
        """Return the earliest delivery time of an alert: its own time, or the end of the quiet hours."""
        if self._quiet is None or (self._held == "warning" and severity == "critical"):
            return moment
        return self._quiet.over(moment)

    def _entries(self, notices: Sequence[Notice]) -> list[Alert]:
        now = self.now()
        clean = [self._redacted(notice) for notice in notices]
        return [self._entry(notice, channel, now) for notice in clean for channel in self.channels]

    def _redacted(self, notice: Notice) -> Notice:
        """Return the notice without secrets, because it may carry agents' texts out of the installation."""
        (title, text), _ = self._redactor.redact_json([notice.title, notice.text])
        details, _ = self._redactor.redact_json(dict(notice.details))
        return replace(notice, title=title, text=text, details=details)

    def _entry(self, notice: Notice, channel: Channel, now: datetime) -> Alert:
        return Alert(
            alert_id=notice.alert_id(channel.name),
            channel=channel.name,
            kind=notice.kind,
            subject_id=notice.subject,
            project=notice.project,
            severity=notice.severity,
            body=channel.body(notice, now),
            created_at=now,
            not_before=self.not_before(notice.severity, now),
            attempts=0,
            status=WAITING,
        )


def open_alerts(engine: RecordIntake, settings: Settings) -> Alerts:
    """Open the alerts of an engine's store with the channels from the settings."""
    quiet = None if settings.quiet_hours is None else quiet_hours_of(settings.quiet_hours)
    channels = channels_of(settings)
    return Alerts(
        engine.store, channels, engine.redactor, engine.now, quiet=quiet, held=settings.quiet_for, policy=engine.policy
    )
