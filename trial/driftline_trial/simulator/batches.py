"""Emulated message batches: created, shown, listed, cancelled and read as in the API, and kept only in memory.

Each request of a batch takes a step of the script, as a request for a message does. A fault of the connection becomes a fault of the
result: `hang` lets the request expire, `reset` loses its result, `truncated_json`, `html` and `huge` spoil its line, `slow`
delays the whole batch. The order of results is unrelated to the order of the requests.
"""

from __future__ import annotations

import re
import secrets
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from audit.fingerprints import digest
from audit.times import iso_time
from driftline_trial.simulator.behaviors import MEGABYTE, PAGE, altered, json_bytes, refusal_of
from driftline_trial.simulator.requests import Json, ParsedRequest, Problem, invalid, json_object, read_request, unauthorized
from driftline_trial.simulator.scripts import Plays, Step

MAX_BATCH_BODY = 256_000_000
"""Bytes a batch may have; more is answered with 413."""
MAX_REQUESTS = 100_000
MAX_BATCHES = 1000
"""Newest batches that are kept."""
MAX_PAGE = 1000
_LIFE = timedelta(hours=24)
_CUSTOM_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
_UNKNOWN = Problem(404, "not_found_error", "There is no batch of this id")
_NOT_ENDED = Problem(404, "not_found_error", "The batch has not ended, so there are no results")
Compose = Callable[[Any, str, float], Json]
"""Returns the message for a request, without faults, from the request, its id and the strictness."""


@dataclass(slots=True)
class Batch:
    """A batch, and the steps for each of its requests."""

    batch_id: str
    requests: list[Json]
    steps: list[Step]
    seconds: float
    created: datetime
    began: float = field(default_factory=time.monotonic)
    cancelled_after: float | None = None
    """Seconds after which it was cancelled."""
    lines: list[bytes] | None = None
    """Its results, once its end was seen."""
    counts: Counter[str] = field(default_factory=Counter)

    @property
    def took(self) -> float | None:
        """Return its seconds of processing; None while it is processed."""
        took = self.seconds if self.cancelled_after is None else self.cancelled_after
        return took if time.monotonic() >= self.began + took else None

    @property
    def answered(self) -> int:
        """Count the requests that are answered: all, or those before the cancellation."""
        if self.cancelled_after is None or self.seconds == 0:
            return len(self.requests)
        return int(len(self.requests) * min(self.cancelled_after / self.seconds, 1.0))


class SimulatedBatches:
    """Every batch of the process. `seconds` is the time that processing one takes."""

    def __init__(self, compose: Compose, *, seconds: float = 0.0) -> None:
        self.seconds = seconds
        self._compose = compose
        self._batches: dict[str, Batch] = {}

    def forget(self, *, seconds: float) -> None:
        """Drop all batches; later ones take this many seconds."""
        self.seconds = seconds
        self._batches.clear()

    def create(self, headers: Mapping[str, str], body: bytes, play: Plays) -> Json | Problem:
        """Make a batch. A fault in one of its requests is found when that is processed, as in the API."""
        problem = unauthorized(headers)
        request = json_object(body) if problem is None else problem
        if isinstance(request, Problem):
            return request
        requests = request.get("requests")
        complaint = _complaint_of(requests)
        if complaint is not None or not isinstance(requests, list):
            return invalid(complaint or "requests: Field required")
        steps = [play.next(partial(_read, request)) for request in requests]
        slowest = max((step.argument for step in steps if step.kind == "slow"), default=0.0)
        batch_id = f"msgbatch_simulated_{secrets.token_hex(8)}"
        batch = Batch(batch_id, requests, steps, self.seconds + slowest, datetime.now(UTC))
        self._batches[batch_id] = batch
        while len(self._batches) > MAX_BATCHES:
            del self._batches[next(iter(self._batches))]
        return self._describe(batch)

    def show(self, batch_id: str) -> Json | Problem:
        """Return the state of a batch."""
        batch = self._batches.get(batch_id)
        return _UNKNOWN if batch is None else self._describe(batch)

    def cancel(self, batch_id: str) -> Json | Problem:
        """Cancel a batch, keeping the results finished so far. An ended batch does not change."""
        batch = self._batches.get(batch_id)
        if batch is None:
            return _UNKNOWN
        if batch.took is None and batch.cancelled_after is None:
            batch.cancelled_after = time.monotonic() - batch.began
        return self._describe(batch)

    def results(self, batch_id: str) -> bytes | Problem:
        """Return the results of an ended batch, one per line."""
        batch = self._batches.get(batch_id)
        if batch is None:
            return _UNKNOWN
        return _NOT_ENDED if batch.took is None else b"".join(self._lines(batch))

    def page(self, query: Mapping[str, str]) -> Json | Problem:
        """A page of the list of batches, the newest first."""
        limit = query.get("limit", "20")
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:5]) <= MAX_PAGE):
            return invalid(f"limit: Input should be from 1 to {MAX_PAGE}")
        names = list(reversed(self._batches))
        for name in ("after_id", "before_id"):
            if name in query and query[name] not in self._batches:
                return invalid(f"{name}: there is no batch of this id")
        if "after_id" in query:
            names = names[names.index(query["after_id"]) + 1 :]
        if "before_id" in query:
            names = names[: names.index(query["before_id"])]
        page_ids = names[: int(limit)]
        ends = {"first_id": page_ids[0] if page_ids else None, "last_id": page_ids[-1] if page_ids else None}
        return {
            "data": [self._describe(self._batches[name]) for name in page_ids],
            "has_more": len(names) > len(page_ids),
            **ends,
        }

    def spoil(self, line: bytes, step: Step, *, cancelled: bool) -> bytes:
        """Return the line of a result, spoiled as its step demands."""
        return (_sound if cancelled else _SPOILED.get(step.kind, _sound))(line, step)

    def _describe(self, batch: Batch) -> Json:
        took = batch.took
        if took is not None:
            self._lines(batch)
        counts = {kind: batch.counts[kind] for kind in ("succeeded", "errored", "canceled", "expired")}
        cancelled = None if batch.cancelled_after is None else batch.created + timedelta(seconds=batch.cancelled_after)
        return {
            "id": batch.batch_id,
            "type": "message_batch",
            "processing_status": "in_progress" if took is None else "ended",
            "request_counts": {"processing": len(batch.requests) if took is None else 0, **counts},
            "created_at": iso_time(batch.created),
            "expires_at": iso_time(batch.created + _LIFE),
            "ended_at": None if took is None else iso_time(batch.created + timedelta(seconds=took)),
            "cancel_initiated_at": None if cancelled is None else iso_time(cancelled),
            "archived_at": None,
            "results_url": None if took is None else f"https://judge.invalid/v1/messages/batches/{batch.batch_id}/results",
        }

    def _lines(self, batch: Batch) -> list[bytes]:
        """Return the results, made on the first request."""
        if batch.lines is None:
            lines = {}
            for index, (request, step) in enumerate(zip(batch.requests, batch.steps, strict=True)):
                name = request["custom_id"]
                cancelled = index >= batch.answered
                result = {"type": "canceled"} if cancelled else self._result(request, step, f"{batch.batch_id}_{index:06d}")
                batch.counts[result["type"]] += 1
                line = json_bytes({"custom_id": name, "result": result})
                lines[digest(f"{batch.batch_id} {name}")] = self.spoil(line, step, cancelled=cancelled)
            batch.lines = [lines[key] for key in sorted(lines)]
        return batch.lines

    def _result(self, request: Json, step: Step, request_id: str) -> Json:
        """Return the result of one request."""
        if step.kind == "hang":
            return {"type": "expired"}
        parsed = _read(request)
        if isinstance(parsed, Problem):
            return _errored(parsed, request_id)
        if (problem := refusal_of(step.kind, parsed)) is not None:
            return _errored(problem, request_id)
        message = altered(step.kind, self._compose(parsed, request_id, step.strictness), parsed)
        if message.get("usage"):
            message["usage"] = message["usage"] | {"service_tier": "batch"}
        return {"type": "succeeded", "message": message}


def _read(request: Json) -> ParsedRequest | Problem:
    """Read one request of a batch, with the headers of the batch."""
    return read_request({"authorization": "Bearer checked", "anthropic-version": "checked"}, json_bytes(request["params"]))


def _errored(problem: Problem, request_id: str) -> Json:
    error = {"type": problem.type, "message": problem.message}
    return {"type": "errored", "error": {"type": "error", "error": error, "request_id": request_id}}


def _sound(line: bytes, _step: Step) -> bytes:
    return line + b"\n"


_SPOILED: dict[str, Callable[[bytes, Step], bytes]] = {
    "truncated_json": lambda line, _step: line[: len(line) // 2] + b"\n",
    "html": lambda _line, _step: PAGE + b"\n",
    "huge": lambda line, step: b" " * int(step.argument * MEGABYTE) + line + b"\n",
    "reset": lambda _line, _step: b"",
}


def _complaint_of(requests: Any) -> str | None:
    """Return the API's complaint about a batch as a whole."""
    if not isinstance(requests, list) or not 0 < len(requests) <= MAX_REQUESTS:
        return f"requests: Input should be a list of 1 to {MAX_REQUESTS} requests"
    custom_ids = set()
    for index, request in enumerate(requests):
        if not isinstance(request, dict) or request.keys() != {"custom_id", "params"}:
            return f"requests.{index}: Input should have a custom_id and params"
        name = request["custom_id"]
        if not isinstance(name, str) or _CUSTOM_ID.fullmatch(name) is None:
            return f"requests.{index}.custom_id: String should match pattern '^[a-zA-Z0-9_-]{{1,64}}$'"
        if name in custom_ids:
            return f"requests.{index}.custom_id: Input should be unique within the batch"
        custom_ids.add(name)
    return None
