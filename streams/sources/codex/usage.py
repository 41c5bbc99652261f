"""Usage in a Codex rollout.

A `token_count` line tells all of the session and the last response, some of them twice. A `token_usage_record`, which came later, tells
one response by its id; it is the only one that tells of the requests that compact the history, and may come before or after the other.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Literal

from streams.sources.agent_entries import number_of

Json = dict[str, Any]
Line = Literal["token_count", "token_usage_record"]

_MAX_UNMATCHED = 16
"""Usages for which the line of the other kind is still awaited: several requests may run at once."""


class UsageCounter:
    """Counts each response once. `context_tokens` is how many tokens the context had at the last one."""

    def __init__(self) -> None:
        self.context_tokens: int | float | None = None
        self._total: Any = None
        self._context: Any = None
        self._responses: set[str] = set()
        self._unmatched: deque[tuple[Line, Json]] = deque(maxlen=_MAX_UNMATCHED)

    def take_record(self, record: Json) -> Json | None:
        """The usage of the response that a `token_usage_record` tells of; None where it is not told or not new."""
        response = record.get("response_id")
        usage = record.get("usage")
        if not isinstance(usage, dict) or response in self._responses:
            return None
        if isinstance(response, str):
            self._responses.add(response)
        return self._count_once("token_usage_record", _usage(usage))

    def take(self, info: Any) -> tuple[Json | None, Json | None]:
        """As `take_record` for a `token_count`, and how full the context is; None for each that is not told or not new."""
        if not isinstance(info, dict):
            return None, None
        total, last = info.get("total_token_usage"), info.get("last_token_usage")
        last = last if isinstance(last, dict) else {}
        is_new = isinstance(total, dict) and total != self._total
        if is_new:
            self._total = total
        usage = self._count_once("token_count", _usage(last)) if is_new else None
        return usage, self._fill(last, info.get("model_context_window"))

    def _count_once(self, line: Line, usage: Json | None) -> Json | None:
        """Return a usage unless a line of the other kind told it."""
        if usage is None:
            return None
        for index, (other, counted) in enumerate(self._unmatched):
            if other != line and counted == usage:
                del self._unmatched[index]
                return None
        self._unmatched.append((line, usage))
        return usage

    def _fill(self, last: Json, window: Any) -> Json | None:
        tokens, size = number_of(last.get("total_tokens")), number_of(window)
        if tokens is None or tokens < 0:
            return None
        self.context_tokens = tokens
        if size is None or size <= 0 or (tokens, size) == self._context:
            return None
        self._context = tokens, size
        return {"saturation": round(100 * tokens / size, 2), "tokens": tokens, "context_window": size}


def _usage(last: Json) -> Json | None:
    read, written = number_of(last.get("input_tokens")), number_of(last.get("output_tokens"))
    if read is None or written is None or read < 0 or written < 0:
        return None
    cached = min(max(number_of(last.get("cached_input_tokens")) or 0, 0), read)
    # Codex counts what the cache gave and took among the input; OpenClaw's form has each apart.
    stored = min(max(number_of(last.get("cache_write_input_tokens")) or 0, 0), read - cached)
    return {"input": read - cached - stored, "cacheRead": cached, "cacheWrite": stored, "output": written}
