"""A real server that tells a real receiver, and is killed while it does."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest
from support.alerting import ROUTING_KEY
from support.on_call import PagerDuty
from support.receivers import Answer, Post, Receiver
from support.servers import Home, nursery, until

POLICY = "version: 1\ndefaults: {heartbeatInterval: 1000}\n"
RECEIVERS = "version: 1\nreceivers: {{oncall: {{type: pagerduty, keyEnv: PAGER_KEY, baseUrl: '{base_url}'}}}}\n"


@pytest.mark.slow
def test_a_kill_between_delivery_and_record_sends_the_alert_again_under_the_same_id(
    tmp_path: Path, receiver: Receiver, other: Receiver
) -> None:
    """Only the unrecorded delivery is repeated, and the other alerts follow. A service that knows the key opens no second alert."""
    receiver.answers = [Answer(hangs=True), Answer()]
    service, hangs = PagerDuty(), [True]

    def open_and_hang_once(post: Post) -> Answer:
        answer = service(post)
        return Answer(hangs=True) if hangs and hangs.pop() else answer

    other.api = open_and_hang_once
    (tmp_path / "receivers.yaml").write_text(RECEIVERS.format(base_url=other.base_url))
    with nursery() as children:
        home = Home(
            tmp_path,
            POLICY,
            DRIFTLINE_ALERT_WEBHOOK=receiver.url,
            DRIFTLINE_ALERT_RECEIVERS=str(tmp_path / "receivers.yaml"),
            PAGER_KEY=ROUTING_KEY,
            NO_PROXY="127.0.0.1",
        )
        headers = {"authorization": f"Bearer {home.connection('north')}"}
        server = children.serve(home)
        body = {"session_id": "s1"}
        assert httpx2.post(f"{server.serving()}/api/audit/heartbeat", headers=headers, json=body, timeout=60).status_code == 200
        until(lambda: len(receiver.posts) == len(other.posts) == 1, "an alert")
        server.kill()
        server = children.serve(home)
        server.serving()
        until(lambda: "critical" in [post.document["severity"] for post in receiver.posts[1:]], "the critical alert")
        until(lambda: len(service.open) == 2, "the critical event")
        server.kill()
    first, *later = [post.document["id"] for post in receiver.posts]
    assert first in later
    assert len(later) == len(set(later))
    assert service.opened == list(dict.fromkeys(post.document["dedup_key"] for post in other.posts))
    assert len(other.posts) == 3
    assert "hush" not in server.logged
