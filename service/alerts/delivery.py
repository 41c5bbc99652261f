"""Raising and delivering alerts: each notice becomes an outbox entry per receiver that wants it, and a periodic task delivers the entries.

1. Each run queries for live incidents that have no alert yet and that a receiver wants. So a crash between an incident and its alert
   loses no alert.
2. A few due alerts are sent one by one. Many are sent as one digest, for example after quiet hours or when a whole fleet falls silent.
   On-call services get each one, because they open and close each one.
3. An alert is delivered at least once: after a crash between the delivery and its record, it is sent again with the same id. On-call
   services recognize it by the id. Chats do not.
4. When an incident ends, each receiver that was told of it, or may have been, is told of the end. Its alerts that still wait are given up.
   A reopened incident alerts again.
5. A judge with unreadable answers raises one alert until its answers are readable again. A cap of a project or of the installation
   raises one alert for each day or month in which it leaves out questions. A description of a tool that changed raises one alert.
6. A failing receiver is skipped for the rest of the run, and does not delay others. A failed alert is retried later, or given up.
7. Addresses and keys are secrets, because anyone who knows Slack's address can post there. Error messages omit them.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, Literal

import msgspec

from analytics.queries import query_rows
from analytics.store.store import DELIVERED, GIVEN_UP, WAITING, Outbox, Store
from audit.policy import Policy
from audit.redaction import Redactor
from schemas.codec.single_object import record_from
from schemas.lazy import httpx2
from schemas.records import Alert, Incident
from service.alerts.messages import Message, Outcome, open_client, send, webhook_body
from service.alerts.notices import (
    RESOLVED,
    Notice,
    cap_notice,
    description_notice,
    incident_notice,
    judge_notice,
    resolved_notice,
    trial_notice,
)
from service.alerts.receivers import Receiver, load_receivers
from service.read.caps import SharedCap, reached_caps
from service.read.judges import UnreadableJudge, unreadable_judges
from service.read.telemetry import TriedReceiver
from service.setup.settings import QuietHours, Settings, quiet_hours_of
from service.setup.workspace import Clock
from streams.engine.record_intake import RecordIntake
from streams.watch.checking import DESCRIPTION_CHANGED

FIRST_RETRY_SECONDS = 5.0
MAX_RETRY_SECONDS = 3600.0
MAX_REQUESTED_WAIT_SECONDS = 6 * 3600.0
"""The longest wait between attempts that a receiver can request."""
MAX_ATTEMPTS = 15
"""Attempts until an alert is given up, which takes about five hours unless the receiver requests waits."""
INTERVAL_SECONDS = 5.0
MAX_INCIDENT_AGE = timedelta(days=1)
"""Older incidents raise no alert, and older ends are not told, so that importing history does not raise alerts."""
MAX_SINGLE_ALERTS = 5
"""Maximum number of due alerts that are sent one by one; more form a digest."""
Chance = Callable[[], float]
SYSTEM_CHANCE: Chance = random.SystemRandom().random
HeldSeverity = Literal["warning", "all"]
"""The alerts that are held until the end of the quiet hours: only warnings, or all."""
log = logging.getLogger(__name__)


class Delivery:
    """The periodic task `alerts`. `chance` returns random numbers from 0 to 1."""

    name = "alerts"
    interval = INTERVAL_SECONDS

    def __init__(self, alerts: Alerts, chance: Chance = SYSTEM_CHANCE) -> None:
        self._alerts = alerts
        self._chance = chance
        self._judgements = 0
        """The end of the topic `judgements` at the last check of judges."""

    async def run(self) -> None:
        """Raise alerts about new incidents, then deliver due alerts."""
        if not self._alerts.receivers:
            return
        await self._raise_incident_alerts()
        await asyncio.to_thread(self._end_incident_alerts)
        await self._raise_judge_alerts()
        await self._raise_description_alerts()
        due = await asyncio.to_thread(self._alerts.outbox.due, self._alerts.now())
        if not due:
            return
        await self._give_up_orphans(due)
        async with open_client() as client:
            await asyncio.gather(
                *(
                    self._deliver(client, receiver, [alert for alert in due if alert.channel == receiver.name])
                    for receiver in self._alerts.receivers
                )
            )

    async def _raise_incident_alerts(self) -> None:
        now = self._alerts.now()
        incidents = await asyncio.to_thread(self._alerts.outbox.find_unalerted, now - MAX_INCIDENT_AGE, now)
        wanted = [incident for incident in incidents if self._alerts.wants(incident)]
        if not wanted:
            return
        traffic: dict[str, list[dict[str, Any]]] = defaultdict(list)
        for row in await asyncio.to_thread(self._read_notices):
            traffic[row["project"]].append(row)
        await self._alerts.raise_alerts([incident_notice(incident, traffic[incident.project]) for incident in wanted])

    def _end_incident_alerts(self) -> None:
        """Queue the ends of incidents, and give up their alerts that still wait."""
        now = self._alerts.now()
        rows = self._alerts.outbox.find_ended(now - MAX_INCIDENT_AGE)
        waiting = [record_from(Alert, row) for row in rows if row["status"] == WAITING]
        over = Outcome("never", "the incident ended before it was sent")
        # Quiet hours held these back. Any other may have been sent, even if a kill left no record of it.
        unsent = {alert.alert_id for alert in waiting if alert.attempts == 0 and alert.not_before > now}
        ends = [row for row in rows if row["alert_id"] not in unsent]
        self._alerts.outbox.put(
            list(self._alerts.build_ends(ends)), [self._apply_outcome(alert, over, now, tried=False) for alert in waiting]
        )

    async def _raise_judge_alerts(self) -> None:
        end = self._alerts.store.end_of("judgements")
        if end != self._judgements:
            judges = await asyncio.to_thread(self._read_unreadable_judges)
            caps = await asyncio.to_thread(self._read_reached_caps)
            notices = [*map(judge_notice, judges), *map(cap_notice, caps)]
            await self._alerts.raise_alerts(notices)
            self._judgements = end

    async def _raise_description_alerts(self) -> None:
        since = self._alerts.now() - MAX_INCIDENT_AGE
        notices = await asyncio.to_thread(self._read_notices)
        changed = [row for row in notices if row["reason"] == DESCRIPTION_CHANGED and row["since"] >= since]
        await self._alerts.raise_alerts([description_notice(row) for row in changed])

    def _read_notices(self) -> list[dict[str, Any]]:
        with closing(self._alerts.store.cursor()) as cursor:
            return list(query_rows(cursor, "notices", {"project": None}))

    def _read_unreadable_judges(self) -> tuple[UnreadableJudge, ...]:
        with closing(self._alerts.store.cursor()) as cursor:
            return unreadable_judges(cursor, None, self._alerts.now())

    def _read_reached_caps(self) -> tuple[SharedCap, ...]:
        with closing(self._alerts.store.cursor()) as cursor:
            return reached_caps(cursor, self._alerts.policy, None, self._alerts.now())

    async def _give_up_orphans(self, due: Sequence[Alert]) -> None:
        """Give up the alerts of receivers that are no longer configured."""
        names = {receiver.name for receiver in self._alerts.receivers}
        orphans = [alert for alert in due if alert.channel not in names]
        if orphans:
            outcome = Outcome("never", "this receiver is no longer configured")
            await asyncio.to_thread(self._record_outcome, orphans, outcome, tried=False)

    async def _deliver(self, client: httpx2.AsyncClient, receiver: Receiver, due: Sequence[Alert]) -> None:
        for alerts in _group_alerts(due, receiver):
            outcome = await send(client, receiver, Message.of(alerts), self._alerts.now)
            await asyncio.to_thread(self._record_outcome, alerts, outcome)
            if outcome.verdict == "later":
                return

    def _record_outcome(self, alerts: Sequence[Alert], outcome: Outcome, *, tried: bool = True) -> None:
        """Record the outcome of an attempt to deliver alerts."""
        now = self._alerts.now()
        settled = [self._apply_outcome(alert, outcome, now, tried=tried) for alert in alerts]
        self._alerts.outbox.settle(settled)
        given_up = [alert for alert in settled if alert.status == GIVEN_UP]
        for alert in given_up[:MAX_SINGLE_ALERTS]:
            log.error("gave up on alert %s after %d attempts: %s", alert.alert_id, alert.attempts, alert.last_error)
        if len(given_up) > MAX_SINGLE_ALERTS:
            log.error("gave up on %d more alerts as well", len(given_up) - MAX_SINGLE_ALERTS)

    def _apply_outcome(self, alert: Alert, outcome: Outcome, now: datetime, *, tried: bool) -> Alert:
        attempts = alert.attempts + tried
        tried_alert = msgspec.structs.replace(alert, attempts=attempts, last_error=outcome.reason)
        if outcome.verdict == "delivered":
            return msgspec.structs.replace(tried_alert, status=DELIVERED, settled_at=now)
        if outcome.verdict == "never" or attempts >= MAX_ATTEMPTS:
            return msgspec.structs.replace(tried_alert, status=GIVEN_UP, settled_at=now)
        retry_at = now + timedelta(seconds=retry_delay(attempts, self._chance(), outcome.retry_after))
        return msgspec.structs.replace(tried_alert, not_before=self._alerts.not_before(alert.severity, retry_at))


def _group_alerts(due: Sequence[Alert], receiver: Receiver) -> Iterator[Sequence[Alert]]:
    """Group due alerts into messages."""
    if len(due) > MAX_SINGLE_ALERTS and not receiver.has_states:
        yield due
    else:
        yield from ([alert] for alert in due)


def retry_delay(attempts: int, chance: float, retry_after: float | None) -> float:
    """Return the seconds until the next attempt, given the number of attempts so far.

    The delay doubles from FIRST_RETRY_SECONDS to MAX_RETRY_SECONDS. `chance`, a random number from 0 to 1, shortens it by up to half, so
    that deliveries that failed together are not retried together. The delay is never shorter than the receiver requested.
    """
    max_delay = min(FIRST_RETRY_SECONDS * 2.0 ** min(max(attempts, 1) - 1, 32), MAX_RETRY_SECONDS)
    return max(max_delay * (0.5 + chance / 2), min(retry_after or 0.0, MAX_REQUESTED_WAIT_SECONDS))


class Alerts:
    """Turns notices into entries of the outbox. Without a receiver it does nothing.

    `public_url` is the server's address for people, used in links.
    """

    def __init__(
        self,
        store: Store,
        receivers: Sequence[Receiver],
        redactor: Redactor,
        now: Clock,
        *,
        quiet: QuietHours | None = None,
        held: HeldSeverity = "warning",
        policy: Policy | None = None,
        public_url: str | None = None,
    ) -> None:
        self.receivers = tuple(receivers)
        self.store = store
        self.outbox = Outbox(store)
        self.now = now
        self._redactor = redactor
        self._quiet = quiet
        self._held = held
        self.policy = policy or Policy()
        self._public_url = public_url

    async def raise_alerts(self, notices: Sequence[Notice]) -> int:
        """Add alerts to the outbox durably, and return the number of new entries. Alerts that were raised before are skipped.

        Those about a project under maintenance are not added. An incident that is still live afterwards raises its alert then.
        """
        now = self.now()
        notices = [
            notice for notice in notices if notice.project is None or self.policy.maintenance_at(notice.project, now) is None
        ]
        if not self.receivers or not notices:
            return 0
        return await asyncio.to_thread(lambda: self.outbox.put(self._build_entries(notices)))

    def wants(self, incident: Incident) -> bool:
        """Return whether a receiver wants alerts about an incident."""
        return any(receiver.wants(incident, self.policy) for receiver in self.receivers)

    async def try_receivers(self, name: str | None) -> list[TriedReceiver]:
        """Send a test message to the receiver of a name, or to all; empty if there is none."""
        return await try_receivers([receiver for receiver in self.receivers if name in (None, receiver.name)], self.now)

    def not_before(self, severity: str, moment: datetime) -> datetime:
        """Return the earliest delivery time of an alert that is due at a moment: that moment, or the end of the quiet hours."""
        if self._quiet is None or (self._held == "warning" and severity == "critical"):
            return moment
        return self._quiet.over(moment)

    def build_ends(self, rows: Sequence[dict[str, Any]]) -> Iterator[Alert]:
        """Yield the alerts about the ends of incidents, from rows of the query `ended_alerts`, oldest first.

        On-call services are told which of their alerts is over, so they get one for each; others get one for each incident.
        """
        for receiver in self.receivers:
            of_receiver = [row for row in rows if row["channel"] == receiver.name]
            newest = {row["alert_id"] if receiver.has_states else row["subject_id"]: row for row in of_receiver}
            for row in newest.values():
                yield self._build_entry(self._redact(resolved_notice(row)), receiver, self.now())

    def _build_entries(self, notices: Sequence[Notice]) -> list[Alert]:
        now = self.now()
        clean = [self._redact(notice) for notice in notices]
        return [
            self._build_entry(notice, receiver, now)
            for notice in clean
            for receiver in self.receivers
            if receiver.wants(notice, self.policy)
        ]

    def _redact(self, notice: Notice) -> Notice:
        """Redact the secrets in a notice, because its texts come from agents and leave the installation."""
        (title, text), _ = self._redactor.redact_json([notice.title, notice.text])
        details, _ = self._redactor.redact_json(dict(notice.details))
        return replace(notice, title=title, text=text, details=details)

    def _build_entry(self, notice: Notice, receiver: Receiver, now: datetime) -> Alert:
        alert_id = notice.alert_id(receiver.name)
        url = None if self._public_url is None or notice.path is None else self._public_url.rstrip("/") + notice.path
        return Alert(
            alert_id=alert_id,
            channel=receiver.name,
            kind=notice.kind,
            subject_id=notice.subject,
            project=notice.project,
            severity=notice.severity,
            body=webhook_body(notice, alert_id, url, now),
            created_at=now,
            not_before=self.not_before(notice.severity, now),
            attempts=0,
            status=WAITING,
        )


def open_alerts(engine: RecordIntake, settings: Settings) -> Alerts:
    """Open the alerts of an engine's store with the receivers from the settings and their file."""
    return Alerts(
        engine.store,
        load_receivers(settings, os.environ),
        engine.redactor,
        engine.now,
        quiet=None if settings.quiet_hours is None else quiet_hours_of(settings.quiet_hours),
        held=settings.quiet_for,
        policy=engine.policy,
        public_url=settings.public_url,
    )


async def try_receivers(receivers: Sequence[Receiver], now: Clock) -> list[TriedReceiver]:
    """Send a test message to each receiver once, without the outbox, and return the outcomes. On-call services close it again at once."""
    notice = trial_notice(now())
    async with open_client() as client:
        outcomes = await asyncio.gather(*(_try_receiver(client, receiver, notice, now) for receiver in receivers))
    return [
        TriedReceiver(receiver.name, outcome.verdict == "delivered", outcome.reason)
        for receiver, outcome in zip(receivers, outcomes, strict=True)
    ]


async def _try_receiver(client: httpx2.AsyncClient, receiver: Receiver, notice: Notice, now: Clock) -> Outcome:
    alert_id = notice.alert_id(receiver.name)
    outcome = await send(client, receiver, Message(alert_id, [webhook_body(notice, alert_id, None, now())]), now)
    if outcome.verdict == "delivered" and receiver.has_states:
        end = replace(notice, kind=RESOLVED, resolves=alert_id)
        end_id = end.alert_id(receiver.name)
        outcome = await send(client, receiver, Message(end_id, [webhook_body(end, end_id, None, now())]), now)
    return outcome
