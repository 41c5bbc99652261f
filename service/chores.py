"""What the serving process does by the clock: the one list of its chores."""

from __future__ import annotations

from service.access import AccessStore
from service.alerts.delivery import Delivery
from service.alerts.raising import open_alerts
from service.settings import Settings
from service.telemetry import Telemetry
from streams.auditing import Auditing
from streams.chores import Chore


def chores_of(engine: Auditing, access: AccessStore, settings: Settings) -> list[Chore]:
    """The chores of a server over this engine, each with what it needs."""
    del access
    alerts = open_alerts(engine, settings)
    return [Delivery(alerts), Telemetry(engine, alerts)]
