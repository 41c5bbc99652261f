"""A server watches by itself: what changed is found without anybody asking, once, though the server is killed all the while."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import httpx2
from support.servers import Home, nursery, until
from support.watch_histories import fallen, history, put

from analytics.store.store import Store
from service.setup.workspace import utc_now


def test_drift_is_found_once_despite_kills(tmp_path: Path) -> None:
    """A kill during a check must neither lose nor duplicate the incident."""
    home = Home(tmp_path)
    with Store(home.database) as store:
        put(store, "scores", history(fallen(6), 40, end=utc_now()))
    operator = home.operator()

    def count_incidents(url: str) -> int:
        headers = {"Authorization": f"Bearer {operator}"}
        answer = httpx2.get(f"{url}/api/audit/ops/incidents", headers=headers, trust_env=False, timeout=60)
        return int(answer.json()["count"])

    with nursery() as children:
        for pause in (0.0, 0.05, 0.1, 0.2):
            server = children.serve(home, "--judge", "none")
            server.serving()
            time.sleep(pause)
            assert server.kill() == -signal.SIGKILL
        server = children.serve(home, "--judge", "none")
        url = server.serving()
        until(lambda: count_incidents(url) > 0, "the incident to be opened")
        server.send(signal.SIGTERM)
        assert server.wait() == 0
    with Store(home.database) as store:
        cursor = store.cursor()
        assert cursor.execute("SELECT type, tier, direction, status, count(*) FROM incidents GROUP BY ALL").fetchall() == [
            ("drift", "tier2", "down", "open", 1)
        ]
        assert store.count("baselines") == 1
