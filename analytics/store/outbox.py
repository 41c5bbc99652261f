"""The outbox of alerts: the store keeps alerts until they are delivered, across restarts."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from datetime import UTC, datetime

from analytics.queries import query_records
from analytics.store.store import Store
from schemas.records import Alert, Incident

WAITING, DELIVERED, GIVEN_UP = "waiting", "delivered", "given_up"
STATUSES = (WAITING, DELIVERED, GIVEN_UP)


_SETTLED = (
    "DELETE FROM log.alerts WHERE status <> ? AND settled_at < ? "
    "AND subject_id NOT IN (SELECT incident_id FROM main.incidents WHERE status IN ('open', 'acknowledged'))"
)


class Outbox:
    """The alerts of a store. Every change is one transaction."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def put(self, alerts: Sequence[Alert]) -> int:
        """Queue alerts, except those whose id was ever queued; return the number of new ones."""
        if not alerts:
            return 0
        first = {alert.alert_id: alert for alert in reversed(alerts)}
        with self._store.transaction() as transaction:
            known_ids = transaction.known_alerts(list(first))
            fresh = [alert for alert_id, alert in first.items() if alert_id not in known_ids]
            transaction.set_alerts(fresh[::-1])
        return len(fresh)

    def settle(self, alerts: Sequence[Alert]) -> None:
        """Replace alerts with these newer versions."""
        with self._store.transaction() as transaction:
            transaction.set_alerts(alerts)

    def forget(self, before: datetime) -> None:
        """Delete alerts settled before a time. Alerts about an open incident stay, or they would be sent again."""
        with self._store.transaction() as transaction:
            transaction.connection.execute(_SETTLED, [WAITING, before.astimezone(UTC).replace(tzinfo=None)])

    def due(self, now: datetime) -> list[Alert]:
        """Return the alerts to deliver now, oldest first."""
        with contextlib.closing(self._store.cursor()) as cursor:
            return list(query_records(cursor, "due_alerts", Alert, {"as_of": now}))

    def untold(self, since: datetime) -> list[Incident]:
        """Live incidents seen since a time that raised no alert at their present severity and confidence."""
        with contextlib.closing(self._store.cursor()) as cursor:
            return list(query_records(cursor, "untold_incidents", Incident, {"since": since}))
