"""Usage in a Codex rollout: `token_count` lines, of which each tells all of the session and the last response, some of them twice."""

from __future__ import annotations

from typing import Any

from streams.sources.agent_entries import number_of

Json = dict[str, Any]


class UsageCounter:
    """Counts each response once. `context_tokens` is how many tokens the context had at the last one."""

    def __init__(self) -> None:
        self.context_tokens: int | float | None = None
        self._total: Any = None
        self._context: Any = None

    def take(self, info: Any) -> tuple[Json | None, Json | None]:
        """The usage of a response as OpenClaw writes it, and how full the context is; None for each that is not told or not new."""
        if not isinstance(info, dict):
            return None, None
        total, last = info.get("total_token_usage"), info.get("last_token_usage")
        last = last if isinstance(last, dict) else {}
        is_new = isinstance(total, dict) and total != self._total
        if is_new:
            self._total = total
        usage = _usage(last) if is_new else None
        return usage, self._fill(last, info.get("model_context_window"))

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
