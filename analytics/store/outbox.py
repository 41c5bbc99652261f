"""The outbox of alerts: alerts wait in the store until they are delivered, across restarts."""

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
        """Put alerts into the queue; those whose id was ever in it are left out. Answers how many are new."""
        if not alerts:
            return 0
        first = {alert.alert_id: alert for alert in reversed(alerts)}
        with self._store.transaction() as transaction:
            known_ids = transaction.known_alerts(list(first))
            fresh = [alert for alert_id, alert in first.items() if alert_id not in known_ids]
            transaction.set_alerts(fresh[::-1])
        return len(fresh)

    def settle(self, alerts: Sequence[Alert]) -> None:
        """Put alerts in place of their earlier versions."""
        with self._store.transaction() as transaction:
            transaction.set_alerts(alerts)

    def forget(self, before: datetime) -> None:
        """Delete what was settled before then. Alerts about an incident stay while that is open, or they would be sent again."""
        with self._store.transaction() as transaction:
            transaction.connection.execute(_SETTLED, [WAITING, before.astimezone(UTC).replace(tzinfo=None)])

    def due(self, now: datetime) -> list[Alert]:
        """Return the alerts to be tried now, oldest first."""
        with contextlib.closing(self._store.cursor()) as cursor:
            return list(query_records(cursor, "due_alerts", Alert, {"as_of": now}))

    def untold(self, since: datetime) -> list[Incident]:
        """Live incidents that were seen since then, and that raised no alert at their severity and confidence."""
        with contextlib.closing(self._store.cursor()) as cursor:
            return list(query_records(cursor, "untold_incidents", Incident, {"since": since}))
