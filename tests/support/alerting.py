"""What tests of alerts share: an outbox at a time of one's own, and settings of receivers on loopback."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

from support.receivers import Receiver

from analytics.store.store import Store
from audit.policy import Policy, RedactionSettings
from audit.redaction import Redactor
from service.alerts.delivery import Alerts, Delivery, HeldSeverity
from service.alerts.notices import Notice
from service.alerts.receivers import OpsgenieReceiver, PagerDutyReceiver, SlackReceiver, TeamsReceiver, WebhookReceiver
from service.alerts.receivers import Receiver as AlertReceiver
from service.setup.settings import QuietHours, Secret

PUBLIC_URL = "https://audit.example/driftline/"
ROUTING_KEY = "hush-hush-routing-key-0123456789"
API_KEY = "hush-hush-api-key"


class Desk:
    """Alerts and their delivery over a store, with a clock that the test moves; every alert is due at once."""

    def __init__(self, store: Store, loop: asyncio.Runner) -> None:
        self.store = store
        self.now = datetime(2026, 10, 1, 12, 0, tzinfo=UTC)
        self._loop = loop
        self.receivers: tuple[AlertReceiver, ...] = ()
        self.quiet: QuietHours | None = None
        self.held: HeldSeverity = "warning"
        self.policy: Policy | None = None

    @property
    def alerts(self) -> Alerts:
        """Return the alerts as a process that has just started loads them."""
        redactor = Redactor(RedactionSettings())
        return Alerts(
            self.store,
            self.receivers,
            redactor,
            lambda: self.now,
            quiet=self.quiet,
            held=self.held,
            policy=self.policy,
            public_url=PUBLIC_URL,
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


def webhook(receiver: Receiver, secret: str | None = None, **choice: Any) -> AlertReceiver:
    """Return a webhook that posts to a receiver, and gets the alerts of a choice."""
    entry = WebhookReceiver(type="webhook", url_env="HOOK", **choice)
    return AlertReceiver("webhook", entry, Secret(receiver.url), Secret(secret) if secret else None)


def slack(receiver: Receiver, **choice: Any) -> AlertReceiver:
    """Return a Slack webhook that posts to a receiver."""
    return AlertReceiver("slack", SlackReceiver(type="slack", url_env="HOOK", **choice), Secret(receiver.url))


def teams(receiver: Receiver) -> AlertReceiver:
    """Return a workflow of Teams that posts to a receiver."""
    return AlertReceiver("teams", TeamsReceiver(type="teams", url_env="HOOK"), Secret(receiver.url))


def pagerduty(receiver: Receiver, **choice: Any) -> AlertReceiver:
    """Return a PagerDuty integration whose API is at a receiver."""
    entry = PagerDutyReceiver(type="pagerduty", key_env="KEY", base_url=receiver.base_url, **choice)
    return AlertReceiver("pagerduty", entry, key=Secret(ROUTING_KEY))


def opsgenie(receiver: Receiver) -> AlertReceiver:
    """Return an Opsgenie integration whose API is at a receiver."""
    entry = OpsgenieReceiver(type="opsgenie", key_env="KEY", base_url=receiver.base_url)
    return AlertReceiver("opsgenie", entry, key=Secret(API_KEY))
