"""Token counts: the most tokens a prompt can have, counted by the API with a margin, otherwise one per byte.

1. Instructions, schema and settings are the same for thousands of questions: the API counts them once (`POST /v1/messages/count_tokens`,
   which is free). Everything else in the prompt counts a token for each byte, which no text exceeds.
2. If a call would not fit under the cap by that, the API counts the whole prompt.
3. A server that does not count is asked again after an hour, one that is in trouble after a minute; until then each byte counts.
4. A count that cannot be true is ignored, and once a call has used more than was counted, so are all counts for that model.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any

from anthropic import APIConnectionError, APIStatusError, AsyncAnthropic

from audit.cost import BYTES_A_TOKEN, OVERHEAD_TOKENS, PromptBound
from audit.exchanges.questions import Question, byte_tokens
from audit.fingerprints import canonical_json

COUNT_SECONDS = 10.0
"""Seconds to wait for a count."""
MARGIN, MARGIN_SHARE = 64, 20
"""A call may have so many tokens more than were counted, and one for so many: the API calls its count an estimate."""
_IN_TROUBLE, _UNABLE = 60.0, 3600.0
"""Seconds until a server is asked again that failed, or that does not count."""
_MAX_HEADS = 1000
_TROUBLE = frozenset([408, 409, 429])
_SERVERS_FAULT = 500
_log = logging.getLogger(__name__)


class PromptBounds:
    """See the module. Belongs to one event loop; `now` is a monotonic clock, in seconds."""

    def __init__(self, client: AsyncAnthropic, now: Callable[[], float]) -> None:
        self._client = client
        self._now = now
        self._heads: dict[bytes, int] = {}
        self._again_at: dict[str, float] = {}
        self._counting = asyncio.Lock()

    async def bounds(self, question: Question, asked: Mapping[str, Any]) -> AsyncGenerator[PromptBound]:
        """Bounds of the prompt of a request (see `streams.judges.requests.parameters`), each nearer than the one before."""
        marked = any("cache_control" in block for block in asked["system"])
        by_bytes = question.texts_size + OVERHEAD_TOKENS
        head = await self._head(asked)
        said = sum(byte_tokens(turn["content"]) for turn in asked["messages"])
        most = by_bytes if head is None else min(by_bytes, head + said)
        # A server that does not count may cache as it likes; the API writes nothing that is not marked.
        written = most if head is None else min(most, head) * marked
        yield PromptBound(most, written)
        whole = None if head is None else await self._count(asked)
        if whole is not None and whole < most:
            yield PromptBound(whole, min(written, whole))

    def distrust(self, model: str) -> None:
        """A call had more tokens than were counted: no count of this model is believed any more."""
        if self._again_at.get(model) != math.inf:
            _log.error("%s used more tokens than the API counted: from now on each byte counts as one", model)
        self._again_at[model] = math.inf

    async def _head(self, asked: Mapping[str, Any]) -> int | None:
        """Tokens at most of all but what is said; None where they are not counted."""
        if self._again_at.get(asked["model"]) == math.inf:
            return None
        alone = {name: value for name, value in asked.items() if name not in {"messages", "max_tokens"}}
        key = hashlib.sha256(canonical_json(alone).encode("utf-8", "surrogatepass")).digest()
        if key not in self._heads:
            async with self._counting:
                await self._count_head(key, alone)
        return self._heads.get(key)

    async def _count_head(self, key: bytes, alone: Mapping[str, Any]) -> None:
        if key in self._heads:
            return  # by whoever had its turn before
        tokens = await self._count(dict(alone) | {"messages": [{"role": "user", "content": "."}]})
        if tokens is not None:
            if len(self._heads) >= _MAX_HEADS:
                self._heads.clear()
            self._heads[key] = tokens

    async def _count(self, asked: Mapping[str, Any]) -> int | None:
        """Tokens at most of a request, by the API's count; None where there is none to be believed."""
        model = asked["model"]
        if self._now() < self._again_at.get(model, -math.inf):
            return None
        request: dict[str, Any] = {name: value for name, value in asked.items() if name != "max_tokens"}
        try:
            async with asyncio.timeout(COUNT_SECONDS):
                tokens = (await self._client.messages.count_tokens(**request)).input_tokens
        except Exception as error:  # noqa: BLE001 - whatever the client trips over: without a count each byte counts
            self._failed(model, error)
            return None
        instructions = sum(len(block["text"].encode()) for block in asked["system"])
        if type(tokens) is not int or tokens < instructions // BYTES_A_TOKEN:
            self._failed(model, ValueError(f"{tokens!r} tokens for {instructions} bytes of instructions"))
            return None
        return tokens + tokens // MARGIN_SHARE + MARGIN

    def _failed(self, model: str, error: Exception) -> None:
        status = error.status_code if isinstance(error, APIStatusError) else 0
        passes = isinstance(error, APIConnectionError | TimeoutError) or status in _TROUBLE or status >= _SERVERS_FAULT
        self._again_at[model] = self._now() + (_IN_TROUBLE if passes else _UNABLE)
        _log.info("%s: tokens are not counted, so each byte counts as one: %s", model, type(error).__name__)
