"""What tests of alerts share: an outbox at a time of one's own, and channels to receivers on loopback."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

from support.receivers import Receiver

from analytics.store.store import Store
from audit.policy import Policy, RedactionSettings
from audit.redaction import Redactor
from service.alerts.delivery import Alerts, Channel, Delivery, HeldSeverity
from service.alerts.notices import Notice
from service.setup.settings import QuietHours, Secret

PUBLIC_URL = "https://audit.example/driftline/"


class Desk:
    """Alerts and their delivery over a store, with a clock that the test moves; every alert is due at once."""

    def __init__(self, store: Store, loop: asyncio.Runner) -> None:
        self.store = store
        self.now = datetime(2026, 10, 1, 12, 0, tzinfo=UTC)
        self._loop = loop
        self.channels: tuple[Channel, ...] = ()
        self.quiet: QuietHours | None = None
        self.held: HeldSeverity = "warning"
        self.policy: Policy | None = None

    @property
    def alerts(self) -> Alerts:
        """Return the alerts as a process that has just started loads them."""
        redactor = Redactor(RedactionSettings())
        return Alerts(
            self.store, self.channels, redactor, lambda: self.now, quiet=self.quiet, held=self.held, policy=self.policy
        )

    def tell(self, *notices: Notice) -> int:
        """Raise alerts."""
        return self._loop.run(self.alerts.raise_alerts(notices))

    def deliver(self) -> None:
        """Run the periodic task once."""
        self._loop.run(Delivery(self.alerts, lambda: 1.0).run())

    def wait(self, **span: float) -> None:
        """Advance the clock."""
        self.now += timedelta(**span)

    def rows(self, columns: str = "channel, subject_id, status, attempts, last_error") -> list[tuple[object, ...]]:
        """Return the outbox, oldest first."""
        return self.store.cursor().execute(f"SELECT {columns} FROM log.alerts ORDER BY created_at, alert_id").fetchall()


def webhook(receiver: Receiver, secret: str | None = None) -> Channel:
    """Return a webhook channel to a receiver."""
    return Channel("webhook", Secret(receiver.url), secret and Secret(secret), PUBLIC_URL)


def slack(receiver: Receiver) -> Channel:
    """Return a Slack channel to a receiver."""
    return Channel("slack", Secret(receiver.url), None, PUBLIC_URL)
