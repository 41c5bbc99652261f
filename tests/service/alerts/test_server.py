"""A real server that tells a real receiver, and is killed while it does."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
from support.receivers import Answer, Receiver
from support.servers import Home, nursery, until

POLICY = "version: 1\ndefaults: {heartbeatInterval: 1000}\n"


@pytest.mark.slow
def test_a_kill_between_delivery_and_record_sends_the_alert_again_under_the_same_id(tmp_path: Path, receiver: Receiver) -> None:
    """Only the unrecorded delivery is repeated, and the other alerts follow."""
    receiver.answers = [Answer(hangs=True), Answer()]
    with nursery() as children:
        home = Home(tmp_path, POLICY, DRIFTLINE_ALERT_WEBHOOK=receiver.url, NO_PROXY="127.0.0.1")
        headers = {"authorization": f"Bearer {home.connection('north')}"}
        server = children.serve(home)
        body = {"session_id": "s1"}
        assert httpx2.post(f"{server.serving()}/api/audit/heartbeat", headers=headers, json=body, timeout=60).status_code == 200
        until(lambda: len(receiver.posts) == 1, "an alert")
        server.kill()
        server = children.serve(home)
        server.serving()
        until(lambda: "critical" in [post.document["severity"] for post in receiver.posts[1:]], "the critical alert")
        server.kill()
    first, *later = [post.document["id"] for post in receiver.posts]
    assert first in later
    assert len(later) == len(set(later))
    assert "hush" not in server.logged
