"""The log of requests: one line each, and for ingest routes one line per second with the number of requests."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

import pytest

from service.text.links import INGEST
from service.web.context import Metrics
from service.web.middleware import RequestLog


class Clock:
    """A clock that a test sets."""

    now = 0.0

    def __call__(self) -> float:
        """Seconds."""
        return self.now


def calls_of(caplog: pytest.LogCaptureFixture) -> list[tuple[int, int | None]]:
    """Return the status of each line, and the number of requests it stands for."""
    return [(record.status, getattr(record, "calls", None)) for record in caplog.records]  # type: ignore[attr-defined]


def record_answer(record: RequestLog, path: str, status: int) -> None:
    """Send one request through the log, answered with this status."""

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(_: object) -> None:
        return

    scope = {"type": "http", "method": "POST", "route": SimpleNamespace(path=path), "answer": status}
    asyncio.run(record(scope, receive, send))


@pytest.fixture
def clock() -> Clock:
    """A clock at zero."""
    return Clock()


@pytest.fixture
def record(clock: Clock, caplog: pytest.LogCaptureFixture) -> RequestLog:
    """The middleware over an application that answers as the call says."""

    async def app(scope: Any, _: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": scope["answer"], "headers": []})

    caplog.set_level(logging.INFO, "service.web.middleware")
    return RequestLog(app, Metrics(), clock)


def test_an_ingest_line_stands_for_the_calls_of_a_second(
    record: RequestLog, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Thousands of equal lines per second are useless, and cost a seventh of the server's capacity."""
    for _ in range(5):
        record_answer(record, INGEST, 201)
    clock.now = 1.0
    record_answer(record, INGEST, 201)
    assert calls_of(caplog) == [(201, 1), (201, 5)]


def test_every_refused_request_has_its_own_line(record: RequestLog, caplog: pytest.LogCaptureFixture) -> None:
    """A refused request must be findable by its id."""
    for status in (201, 409, 409, 503, 503):
        record_answer(record, INGEST, status)
    assert calls_of(caplog) == [(201, 1), (409, None), (409, None), (503, None), (503, None)]


def test_every_other_request_has_its_own_line(record: RequestLog, caplog: pytest.LogCaptureFixture) -> None:
    """Requests of people and their tools are rare, and each may matter."""
    for _ in range(2):
        record_answer(record, "/api/audit/{project}/scores", 200)
    assert calls_of(caplog) == [(200, None), (200, None)]
