"""The simulated judge as an ASGI application: POST /v1/messages, answered by simple rules and spoiled by a script."""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

from audit.fingerprints import digest
from service.simulator.behaviours import Answering, altered, deliver, refusal_of
from service.simulator.caching import PrefixCache
from service.simulator.calls import Call, Receive, Scope, Send, json_bytes
from service.simulator.requests import MAX_BODY, Asked, Json, Problem, read_request
from service.simulator.scoring import CHARACTERS_A_TOKEN, MODEL, simulated_answer
from service.simulator.script import Play, Step

MAX_KEPT = 100
"""Newest request bodies that are kept to be looked at."""
_LIMITS = {"requests": 4_000, "input-tokens": 4_000_000, "output-tokens": 800_000}
_NO_SCHEMA = "Simulated: the request holds no schema of an answer, so there is nothing to answer."
_log = logging.getLogger(__name__)


class SimulatedJudge:
    """Answers calls. What it rates it rates by rules, and it does not understand a word."""

    def __init__(self, play: Play, *, latency: float = 0.0, cut: Callable[[Scope], None]) -> None:
        self.play = play
        """What is done with each request; may be exchanged for another."""
        self.received: deque[bytes] = deque(maxlen=MAX_KEPT)
        """The newest bodies of requests for a message."""
        self.cache = PrefixCache()
        self._latency = latency
        self._cut = cut

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one call."""
        call = Call(scope, receive, send, lambda: self._cut(scope))
        body = await call.body(MAX_BODY)
        if call.target != "POST /v1/messages":
            await _refuse(call, Problem(404, "not_found_error", "The simulated judge knows POST /v1/messages only"), "none")
        elif body is None:
            await _refuse(call, Problem(413, "request_too_large", f"Request exceeds {MAX_BODY} bytes"), "none")
        else:
            await self._message(call, body)

    async def _message(self, call: Call, body: bytes) -> None:
        self.received.append(body)
        step = self.play.next()
        number = self.play.requests
        if await call.pause(self._latency):
            await self._play(step, call, body, f"req_simulated_{number:06d}")
        _log.info("request %d: %s, status %d, %d bytes", number, step.kind, call.status, len(body))

    async def _play(self, step: Step, call: Call, body: bytes, request_id: str) -> None:
        asked = read_request(call.headers, body)
        if isinstance(asked, Problem):
            await _refuse(call, asked, request_id)
        elif (problem := refusal_of(step.kind, asked)) is not None:
            await _refuse(call, problem, request_id, wait=int(step.argument))
        else:
            answer = self._answer(asked, request_id)
            head = {"request-id": request_id, **_limit_headers(self.play.requests % _LIMITS["requests"], answer["usage"])}
            spoiled = json_bytes(altered(step.kind, answer, asked))
            await deliver(step.kind, Answering(call, head, spoiled, step.argument))

    def _answer(self, asked: Asked, request_id: str) -> Json:
        """The message that the request gets when nothing goes wrong."""
        said = _NO_SCHEMA
        if asked.schema is not None:
            said = json.dumps(simulated_answer(asked.schema, asked.materials, model=asked.model), ensure_ascii=False)
        room = asked.max_tokens * CHARACTERS_A_TOKEN
        return {
            "id": f"msg_simulated_{digest(request_id)}",
            "type": "message",
            "role": "assistant",
            "model": MODEL,
            "content": [{"type": "text", "text": said[:room]}],
            "stop_reason": "end_turn" if len(said) <= room else "max_tokens",
            "stop_sequence": None,
            "usage": self.cache.usage(asked, said),
        }


async def _refuse(call: Call, problem: Problem, request_id: str, *, wait: int = 0) -> None:
    error = {"type": "error", "error": {"type": problem.type, "message": problem.message}, "request_id": request_id}
    head = {"request-id": request_id}
    if problem.status == HTTPStatus.TOO_MANY_REQUESTS:
        head |= {"retry-after": str(wait), **_limit_headers(_LIMITS["requests"], {}, wait)}
    await call.answer(problem.status, head, json_bytes(error))


def _limit_headers(number: int, usage: Mapping[str, Any], wait: int = 60) -> dict[str, str]:
    """What is left of the limits, which this server counts and never enforces."""
    spent = {"requests": number, "input-tokens": usage.get("input_tokens", 0), "output-tokens": usage.get("output_tokens", 0)}
    reset = (datetime.now(UTC) + timedelta(seconds=wait)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        f"anthropic-ratelimit-{what}-{part}": value
        for what, limit in _LIMITS.items()
        for part, value in (("limit", str(limit)), ("remaining", str(max(0, limit - spent[what]))), ("reset", reset))
    }
