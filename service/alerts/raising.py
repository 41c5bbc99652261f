"""Raising alerts: a notice becomes one entry of the outbox for each channel, once."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from typing import Literal

from analytics.store.outbox import WAITING, Outbox
from analytics.store.store import Store
from audit.policy.policy import Policy
from audit.redaction import Redactor
from schemas.records import Alert, Incident
from service.alerts.channels import Channel, channels_of
from service.alerts.notices import Notice
from service.setup.quiet_hours import QuietHours, quiet_hours_of
from service.setup.settings import Settings
from service.setup.workspace import Clock
from streams.engine.record_intake import RecordIntake
from streams.watch.lifecycle import CONFIRMED

Held = Literal["warning", "all"]
"""Alerts that wait for the end of the quiet hours: warnings alone, or all."""


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

        Answers how many entries of the outbox are new.
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
        """Return the earliest time for an alert that is ready at a moment: then, or the end of the quiet hours."""
        if self._quiet is None or (self._held == "warning" and severity == "critical"):
            return moment
        return self._quiet.over(moment)

    def _entries(self, notices: Sequence[Notice]) -> list[Alert]:
        now = self.now()
        clean = [self._redacted(notice) for notice in notices]
        return [self._entry(notice, channel, now) for notice in clean for channel in self.channels]

    def _redacted(self, notice: Notice) -> Notice:
        """Return the notice without secrets: agents' texts leave the installation."""
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
    """Open the alerts of an engine's store, by the settings."""
    quiet = None if settings.quiet_hours is None else quiet_hours_of(settings.quiet_hours)
    channels = channels_of(settings)
    return Alerts(
        engine.store, channels, engine.redactor, engine.now, quiet=quiet, held=settings.quiet_for, policy=engine.policy
    )
