"""Emulated files and batches of OpenAI's API, for Chat Completions and Responses, kept only in memory.

Steps and faults are those of message batches. An expired request ends its whole batch as expired, as in the API: what was answered before
is in the output file, everything else in the error file.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple

import msgspec

from driftline_trial.simulator.batches import MAX_BATCHES, Batch, Compose, SimulatedBatches
from driftline_trial.simulator.behaviors import altered, json_bytes, refusal_of
from driftline_trial.simulator.openai_forms import (
    NO_KEY,
    chat_completion,
    error_body,
    has_key,
    read_chat,
    read_responses,
    response,
)
from driftline_trial.simulator.requests import Json, ParsedRequest, Problem, invalid, json_object
from driftline_trial.simulator.scripts import Plays, Step

_MAX_REQUESTS = 50_000
_MAX_PAGE = 100
_HEADERS = {"authorization": "Bearer checked"}
_UNKNOWN_FILE = Problem(404, "invalid_request_error", "No such File object")
_EXPIRED = {"code": "batch_expired", "message": "This request could not be executed before the completion window expired."}
_CANCELLED = {"code": "batch_cancelled", "message": "This request was cancelled."}


class _Endpoint(NamedTuple):
    """What a batch asks: how its requests are read and its answers written."""

    read: Callable[[Mapping[str, str], bytes], ParsedRequest | Problem]
    encode: Callable[[Json], Json]


_ENDPOINTS = {
    "/v1/chat/completions": _Endpoint(read_chat, chat_completion),
    "/v1/responses": _Endpoint(read_responses, response),
}


class SimulatedOpenAIBatches(SimulatedBatches):
    """Every file and batch of the process. A batch of more than `max_queue` requests fails as a whole."""

    def __init__(self, compose: Compose, *, seconds: float = 0.0) -> None:
        super().__init__(compose, seconds=seconds)
        self.files: dict[str, bytes] = {}
        self.max_queue = _MAX_REQUESTS
        self._details: dict[str, Json] = {}
        """Per batch: its endpoint, input file, metadata, errors, and the ids of its files of results."""

    def forget(self, *, seconds: float) -> None:
        """Drop all files and batches; later batches take this many seconds."""
        super().forget(seconds=seconds)
        self.files.clear()
        self._details.clear()
        self.max_queue = _MAX_REQUESTS

    def upload(self, headers: Mapping[str, str], body: bytes) -> Json | Problem:
        """Keep a file."""
        if not has_key(headers):
            return NO_KEY
        parts = _read_form(headers.get("content-type", ""), body)
        if parts.get("purpose") != b"batch" or "file" not in parts:
            return invalid("'file' and the purpose 'batch' are required")
        file_id = _new_id("file-simulated-")
        self.files[file_id] = parts["file"]
        return {"id": file_id, "object": "file", "bytes": len(parts["file"]), "purpose": "batch", "status": "processed"}

    def content(self, file_id: str) -> bytes | Problem:
        """Return the content of a file."""
        return self.files.get(file_id, _UNKNOWN_FILE)

    def delete(self, file_id: str) -> Json | Problem:
        """Delete a file."""
        if self.files.pop(file_id, None) is None:
            return _UNKNOWN_FILE
        return {"id": file_id, "object": "file", "deleted": True}

    def create(self, headers: Mapping[str, str], body: bytes, play: Plays) -> Json | Problem:
        """Make a batch of the requests in a file."""
        request = json_object(body) if has_key(headers) else NO_KEY
        if isinstance(request, Problem):
            return request
        endpoint, file_id = request.get("endpoint"), request.get("input_file_id")
        if endpoint not in _ENDPOINTS or request.get("completion_window") != "24h":
            return invalid("Invalid value: 'endpoint' or 'completion_window'.")
        if file_id not in self.files:
            return invalid("Invalid value: 'input_file_id': no such file.")
        lines = [msgspec.json.decode(line) for line in self.files[file_id].splitlines() if line.strip()]
        complaint = _find_complaint(lines, endpoint, self.max_queue)
        read = _ENDPOINTS[endpoint].read
        steps = [] if complaint else [play.next(partial(read, _HEADERS, json_bytes(line["body"]))) for line in lines]
        slowest = max((step.argument for step in steps if step.kind == "slow"), default=0.0)
        seconds = 0.0 if complaint else self.seconds + slowest
        batch = Batch(_new_id("batch_simulated_"), [] if complaint else lines, steps, seconds, datetime.now(UTC))
        self._batches[batch.batch_id] = batch
        self._details[batch.batch_id] = {
            "endpoint": endpoint,
            "input_file_id": file_id,
            "metadata": request.get("metadata"),
            "errors": {"object": "list", "data": [complaint]} if complaint else None,
        }
        while len(self._batches) > MAX_BATCHES:
            del self._batches[next(iter(self._batches))]
        return self._describe(batch)

    def page(self, query: Mapping[str, str]) -> Json | Problem:
        """A page of the list of batches, the newest first."""
        limit = query.get("limit", "20")
        if not (limit.isascii() and limit.isdigit() and 1 <= int(limit[:5]) <= _MAX_PAGE):
            return invalid("Invalid 'limit'")
        names = list(reversed(self._batches))
        after = query.get("after")
        if after is not None:
            names = names[names.index(after) + 1 :] if after in names else []
        page_ids = names[: int(limit)]
        return {
            "object": "list",
            "data": [self._describe(self._batches[name]) for name in page_ids],
            "first_id": page_ids[0] if page_ids else None,
            "last_id": page_ids[-1] if page_ids else None,
            "has_more": len(names) > len(page_ids),
        }

    def _describe(self, batch: Batch) -> Json:
        details = self._details[batch.batch_id]
        took = batch.took
        status = "in_progress" if batch.cancelled_after is None else "cancelling"
        if details["errors"]:
            status = "failed"
        elif took is not None:
            self._write_results(batch)
            status = "completed" if batch.cancelled_after is None else "cancelled"
            status = "expired" if batch.counts["expired"] else status
        created = int(batch.created.timestamp())
        ended = None if took is None else int((batch.created + timedelta(seconds=took)).timestamp())
        succeeded = batch.counts["succeeded"]
        return {
            "id": batch.batch_id,
            "object": "batch",
            "status": status,
            "completion_window": "24h",
            "created_at": created,
            "expires_at": created + 24 * 3600,
            **{f"{name}_at": ended if status == name else None for name in ("completed", "failed", "expired", "cancelled")},
            "request_counts": {
                "total": len(batch.requests),
                "completed": succeeded,
                "failed": sum(batch.counts.values()) - succeeded,
            },
            "output_file_id": None,
            "error_file_id": None,
            **details,
        }

    def _write_results(self, batch: Batch) -> None:
        """Write the files of results when the end of a batch is first seen."""
        details = self._details[batch.batch_id]
        if batch.lines is None:
            lines = self._lines(batch)
            for name, written in (("output_file_id", lines["output"]), ("error_file_id", lines["error"])):
                if written:
                    details[name] = _new_id("file-simulated-")
                    self.files[details[name]] = b"".join(written)

    def _lines(self, batch: Batch) -> Any:
        written: dict[str, list[bytes]] = {"output": [], "error": []}
        batch.lines = []
        for index, (request, step) in enumerate(zip(batch.requests, batch.steps, strict=True)):
            cancelled = index >= batch.answered
            kind, fields = ("canceled", {"error": _CANCELLED}) if cancelled else self._outcome(batch, request, step, index)
            batch.counts[kind] += 1
            head = {"id": f"batch_req_{index:06d}", "custom_id": request["custom_id"], "response": None, "error": None}
            line = self.spoil(json_bytes(head | fields), step, cancelled=cancelled)
            written["output" if kind == "succeeded" else "error"].append(line)
        return {name: list(reversed(lines)) for name, lines in written.items()}

    def _outcome(self, batch: Batch, request: Json, step: Step, index: int) -> tuple[str, Json]:
        """Return the kind of a request's result, and its fields."""
        if step.kind == "hang":
            return "expired", {"error": _EXPIRED}
        endpoint = _ENDPOINTS[self._details[batch.batch_id]["endpoint"]]
        parsed = endpoint.read(_HEADERS, json_bytes(request["body"]))
        if isinstance(parsed, Problem):
            return _errored(parsed)
        if (problem := refusal_of(step.kind, parsed)) is not None:
            return _errored(problem)
        request_id = f"{batch.batch_id}_{index:06d}"
        message = altered(step.kind, self._compose(parsed, request_id, step.strictness), parsed)
        answer = {"status_code": 200, "request_id": request_id, "body": endpoint.encode(message)}
        return "succeeded", {"response": answer}


def _errored(problem: Problem) -> tuple[str, Json]:
    return "errored", {"response": {"status_code": problem.status, "body": error_body(problem)}}


def _new_id(prefix: str) -> str:
    return f"{prefix}{secrets.token_hex(8)}"


def _read_form(content_type: str, body: bytes) -> dict[str, bytes]:
    """Return the parts of a multipart form by name."""
    _, _, boundary = content_type.partition("boundary=")
    parts = {}
    for part in body.split(b"--" + boundary.strip('"').encode()) if boundary else []:
        head, _, content = part.partition(b"\r\n\r\n")
        _, _, name = head.decode("latin-1").partition(' name="')
        parts[name.partition('"')[0]] = content.removesuffix(b"\r\n")
    return parts


def _find_complaint(lines: list[Any], endpoint: str, max_queue: int) -> Json | None:
    """Return the API's complaint about a file as a whole."""
    for number, line in enumerate(lines, start=1):
        if not isinstance(line, dict) or line.keys() != {"custom_id", "method", "url", "body"} or line["method"] != "POST":
            return {"code": "invalid_json_line", "message": "This line is not parseable as valid JSON.", "line": number}
        if line["url"] != endpoint:
            return {"code": "mismatched_endpoint", "message": "The URL does not match the batch's endpoint.", "line": number}
    if len({line["custom_id"] for line in lines}) < len(lines):
        return {"code": "duplicate_custom_id", "message": "The custom_id has been used before.", "line": None}
    if len({line["body"].get("model") for line in lines}) > 1:
        return {"code": "mismatched_model", "message": "All requests of a batch must have the same model.", "line": None}
    if not 0 < len(lines) <= max_queue:
        return {"code": "token_limit_exceeded", "message": "Enqueued token limit reached for this model.", "line": None}
    return None
