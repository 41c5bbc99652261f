"""Senders' endpoints when something fails behind them, and when they refuse a call."""

from __future__ import annotations

from typing import Any

import pytest
from support.api_server import BodyBuilder, Call, Tokens

from analytics.store.store import Store
from schemas.errors import BoundsError, BrokerError, BusyError, StoreError
from service.text.links import EVENTS, EVENTS_BULK, EXCHANGES, INGEST
from streams.engine.engine import Engine

EVENT = {"session_id": "s", "event": "x", "event_id": "e"}
FAULTS = {
    "busy": (503, BusyError("too many records wait to be committed")),
    "log_unavailable": (503, BrokerError("no broker answers")),
    "a full disk": (503, StoreError("no space left on device")),
    "a record that may not be written": (400, BoundsError("Exchange.turn_number: is too large")),
    "a fault of ours": (500, RuntimeError("nothing that a sender should see")),
}


@pytest.mark.parametrize(("status", "fault"), FAULTS.values(), ids=FAULTS)
def test_an_internal_error_tells_the_sender_whether_to_retry(
    call: Call, tokens: Tokens, exchange_body: BodyBuilder, status: int, fault: Exception
) -> None:
    """A sender decides by status and Retry-After."""

    async def fail(*_: Any) -> Any:
        raise fault

    bodies = {
        INGEST: exchange_body(1),
        EXCHANGES: [exchange_body(1)],
        EVENTS: {"session_id": "s", "events": [EVENT]},
        EVENTS_BULK: [EVENT],
    }
    with pytest.MonkeyPatch.context() as patch:
        for name in ("ingest_exchange", "ingest_exchanges", "publish"):
            patch.setattr(Engine, name, fail)
        answers = [call("POST", path, tokens.ops, json=body) for path, body in bodies.items()]
    assert {answer.status_code for answer in answers} == {status}
    assert {"retry-after" in answer.headers for answer in answers} == {status == 503}


def test_a_refused_request_has_changed_nothing(call: Call, tokens: Tokens, exchange_body: BodyBuilder, store: Store) -> None:
    """A refused request can be corrected and sent again."""
    for unsound in (exchange_body(1) | {"exchange": {"id": "s1:1"}}, exchange_body(1) | {"session_id": 5}):
        assert call("POST", INGEST, tokens.ops, json=unsound).status_code == 400
    assert call("POST", INGEST, tokens.ops, json=exchange_body(1)).status_code == 201
    assert store.count("exchanges") == 1
