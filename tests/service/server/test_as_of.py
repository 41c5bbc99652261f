"""A server started as of a time uses that time for records, but checks tokens by the real clock."""

from __future__ import annotations

import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from unittest.mock import MagicMock

import httpx2
import pytest
from support.clients import INGEST, bearer
from support.servers import PATIENCE, Home, nursery

from analytics.store.store import Store
from audit.policy import Policy
from service.server import periodic_tasks
from service.setup.access import AccessStore, Holder, access_file
from service.setup.settings import Settings

AS_OF = datetime(2020, 1, 1, tzinfo=UTC)
BODY = {
    "session_id": "s",
    "exchange": {
        "id": "s:1",
        "timestamp": "2019-12-31T18:00:00Z",
        "user_message": {"content": "Is the backup of this night healthy?"},
        "agent_response": {"content": "It is."},
    },
}


@pytest.mark.slow
def test_a_time_offset_applies_to_records_and_not_to_tokens(tmp_path: Path) -> None:
    """The demo's sessions arrive at their own times, but an expired token must stay expired."""
    home = Home(tmp_path)
    with AccessStore(access_file(home.database), lambda: AS_OF) as access:
        expired = access.add(Holder("connection", "expired", "ops"), timedelta(days=30))
    with nursery() as children:
        server = children.start(home, "serve", "--port", "0", "--judge", "none", "--as-of", AS_OF.isoformat())
        url = server.serving()

        def status_of(token: str) -> int:
            return httpx2.post(url + INGEST, headers=bearer(token), json=BODY, timeout=PATIENCE, trust_env=False).status_code

        assert status_of(home.connection("north")) == 201
        assert status_of(expired) == 401
        server.send(signal.SIGTERM)
        assert server.wait() == 0
    with Store(home.database) as store:
        [(ingested_at,)] = store.cursor().execute("SELECT ingested_at FROM log.exchanges").fetchall()
    assert AS_OF <= ingested_at.replace(tzinfo=UTC) < AS_OF + timedelta(days=1)


def test_a_server_as_of_a_time_runs_no_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    """History is checked once it is complete: a check halfway would open false incidents."""
    monkeypatch.setattr(periodic_tasks, "open_alerts", MagicMock())
    engine = MagicMock(policy=Policy())
    names = {
        watches: {task.name for task in periodic_tasks.periodic_tasks_of(engine, Settings(), MagicMock(), watches=watches)}
        for watches in (True, False)
    }
    assert names[True] - names[False] == {"watch"}
