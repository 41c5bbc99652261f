"""A server that restarts in its process applies the policy file and refuses no request."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx2
import pytest
from support.clients import INGEST, bearer, exchange_body
from support.servers import PATIENCE, Home, Nursery, nursery, until

from service.write.policy_file import fingerprint

pytestmark = pytest.mark.slow
CHANGED = "version: 1\ndefaults: {retentionDays: null, sampling: {routineInterval: 9}}\n"


@pytest.fixture(scope="module")
def children() -> Iterator[Nursery]:
    """The pool that starts servers."""
    with nursery() as opened:
        yield opened


def test_a_saved_policy_takes_effect_and_no_request_is_refused(children: Nursery, tmp_path: Path) -> None:
    """A policy can be applied remotely, without senders noticing the restart."""
    home = Home(tmp_path)
    server = children.serve(home)
    root, sender, url = home.operator(), home.connection("north"), server.serving()

    def send_request(method: str, path: str, token: str, body: object = None) -> httpx2.Response:
        address = url + path if path.startswith("/") else f"{url}/api/audit/{path}"
        return httpx2.request(method, address, headers=bearer(token), json=body, timeout=PATIENCE, trust_env=False)

    answers: list[int] = []
    stop = threading.Event()

    def send() -> None:
        while not stop.is_set():
            number = len(answers) + 1
            answers.append(
                send_request("POST", INGEST, sender, exchange_body("s", number, f"It is turn {number}.")).status_code
            )

    sending = threading.Thread(target=send)
    sending.start()
    until(lambda: answers, "the first exchange")
    try:
        base = fingerprint(home.policy.read_text("utf-8"))
        assert send_request("PUT", "policy", root, {"text": CHANGED, "base": base}).status_code == 200
        assert send_request("GET", "policy/effective", root).json()["settings"]["sampling.routineInterval"] == 3
        with ThreadPoolExecutor(4) as callers:  # a double click, or two people: one restart, and the server goes on
            applied = callers.map(lambda _: send_request("POST", "policy/apply", root, {}).status_code, range(4))
        assert set(applied) == {202}
        until(lambda: send_request("GET", "policy", root).json()["inForce"], "the policy to be in force")
        before = len(answers)
        until(lambda: len(answers) > before + 1, "exchanges after the start")
    finally:
        stop.set()
        sending.join(PATIENCE)
    assert send_request("GET", "policy/effective", root).json()["settings"]["sampling.routineInterval"] == 9
    assert set(answers) == {201}
    assert not server.ended
    assert "restarted at" in server.logged
    # A score follows its exchange a moment later.
    until(
        lambda: len(answers) == len(send_request("GET", "ops/scores?limit=1000", root).json()["scores"]),
        "a score of each exchange",
    )
    server.send(signal.SIGTERM)
    assert server.wait() == 0
