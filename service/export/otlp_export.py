"""Scores for an OpenTelemetry collector over OTLP/HTTP: off unless an address is given, at least once, from then on.

1. How far they were sent is a watermark in the database, moved after the collector has taken them: what a kill cuts off is sent
   again. Scores that were there before the address was given are not sent.
2. A collector that is busy or away is asked again later; what it says is malformed is logged and left behind, for it would never be taken.
3. Nothing else waits for it: it runs beside the server's work and reads with a cursor of its own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from tenacity import AsyncRetrying, RetryCallState, RetryError, retry_if_not_result, stop_after_attempt, wait_exponential

from analytics.queries import query_rows
from analytics.store.store import Store
from schemas.errors import DriftlineError
from schemas.lazy.httpx2 import httpx2
from service.export.otlp_collector import Collector
from service.export.otlp_events import request_of
from service.setup.version import version
from streams.judges.rate_limits import retry_after

CONSUMER = "otlp"
TOPIC = "scores"
BATCH = 500
"""Scores of one request."""
INTERVAL = 10.0
DEADLINE = 10.0
"""Seconds for a request."""
TRIES = 3
PAUSE = 1.0
"""Seconds before the first retry; each next one waits twice as long, or as long as the collector says."""
LONGEST_PAUSE = 30.0
AGAIN = frozenset({429, 502, 503, 504})
MALFORMED = 400
log = logging.getLogger(__name__)


class CollectorError(DriftlineError):
    """The collector refused the scores for now; they are sent again later."""

    hint = "Check that DRIFTLINE_OTLP_ENDPOINT is a collector's address for OTLP over HTTP, and look at the collector's log."


class ScoreEvents:
    """The periodic task that sends new scores."""

    name = "otlp"
    interval = INTERVAL

    def __init__(self, store: Store, collector: Collector) -> None:
        self._store, self._collector = store, collector

    async def run(self) -> None:
        """Send all waiting scores, batch by batch; CollectorError if the collector refuses them for now."""
        positions = await asyncio.to_thread(self._begin)
        async with httpx2.AsyncClient(follow_redirects=False, timeout=DEADLINE) as client:
            for partition in positions:
                while rows := await asyncio.to_thread(self._read, partition, positions[partition]):
                    await self._send(client, rows)
                    positions[partition] = rows[-1]["_offset"] + 1
                    await asyncio.to_thread(self._move, partition, positions[partition])

    def _begin(self) -> dict[int, int]:
        """Return the position to continue from in each partition; on the first run, the one after the last of all."""
        with contextlib.closing(self._store.cursor()) as cursor:
            ends = {row["partition"]: row["next_position"] for row in query_rows(cursor, "score_positions")}
        with self._store.transaction() as transaction:
            known = {partition: at for (_, partition), at in transaction.watermarks(CONSUMER).items()}
            if not known:
                started = ends or {0: 0}
                transaction.set_watermarks(CONSUMER, {(TOPIC, partition): at for partition, at in started.items()})
                return started
        # Partitions that came later are new from their beginning; a table that was made again is shorter than it was.
        return {partition: min(known.get(partition, 0), end) for partition, end in ends.items()}

    def _read(self, partition: int, position: int) -> list[dict[str, Any]]:
        with contextlib.closing(self._store.cursor()) as cursor:
            return query_rows(cursor, "scores_after", {"partition": partition, "position": position, "limit": BATCH})

    def _move(self, partition: int, position: int) -> None:
        with self._store.transaction() as transaction:
            transaction.set_watermarks(CONSUMER, {(TOPIC, partition): position})

    async def _send(self, client: httpx2.AsyncClient, rows: list[dict[str, Any]]) -> None:
        body = request_of(rows, version(), explain=self._collector.explain).SerializeToString()
        again = AsyncRetrying(retry=retry_if_not_result(_is_settled), wait=_pause, stop=stop_after_attempt(TRIES))
        try:
            await again(self._try, client, body, rows)
        except RetryError:
            raise CollectorError("the collector is unreachable, or accepts nothing at the moment") from None

    async def _try(self, client: httpx2.AsyncClient, body: bytes, rows: list[dict[str, Any]]) -> float | None:
        """Send once: None if it is settled, else the seconds that the collector asks to wait."""
        headers = {**self._collector.headers, "content-type": "application/x-protobuf"}
        try:
            async with asyncio.timeout(DEADLINE):
                answer = await client.post(self._collector.url, content=body, headers=headers)
        except (httpx2.HTTPError, TimeoutError):
            return 0.0
        if answer.status_code in AGAIN:
            return retry_after(answer.headers, time.time) or 0.0
        span = f"scores from {rows[0]['_offset']} to {rows[-1]['_offset']}"
        if answer.status_code == MALFORMED:
            log.error("the collector rejects %s as malformed: they are left out", span)
        elif not answer.is_success:
            raise CollectorError(f"the collector answers {answer.status_code}")
        else:
            _note_partial(answer.content, span)
        return None


def _is_settled(wait: float | None) -> bool:
    return wait is None


def _pause(tried: RetryCallState) -> float:
    """Return the seconds until the next attempt: as the collector asks, and at least `PAUSE`, doubled with each attempt."""
    wanted = tried.outcome.result() if tried.outcome else 0.0
    return min(max(wanted, wait_exponential(multiplier=PAUSE)(tried)), LONGEST_PAUSE)


def _note_partial(content: bytes, span: str) -> None:
    """Log scores that the collector rejected, which by the protocol must not be sent again."""
    with contextlib.suppress(Exception):  # an answer of another form: the scores were taken all the same
        partial = ExportLogsServiceResponse.FromString(content).partial_success
        if partial.rejected_log_records:
            log.warning("the collector left %d events of %s out", partial.rejected_log_records, span)
