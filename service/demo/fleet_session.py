"""Writing one synthetic session as an OpenClaw transcript, entry by entry."""

from __future__ import annotations

import json
from datetime import datetime, timedelta
from random import Random
from typing import Any

MODEL = "claude-sonnet-5-5"
"""Model that the synthetic sessions say they ran on."""

Json = dict[str, Any]


class SessionWriter:
    """Collects the lines of one session; every entry moves time on and by default continues the last one."""

    def __init__(self, session_id: str, start: datetime, random: Random) -> None:
        self.session_id = session_id
        self.lines: list[str] = []
        self.now = start
        self.tip: str | None = None
        self.usage = (320, 120)
        """Most tokens that a message reads and writes."""
        self.growth = 0
        """Tokens by which each message reads more than the one before, where the context grows."""
        self._read = 0
        self._random = random
        self._count = 0
        header = {"type": "session", "version": 3, "id": session_id, "timestamp": _iso(start), "cwd": "/synthetic"}
        self.lines.append(json.dumps(header))
        self.add("model_change", provider="anthropic", modelId=MODEL)

    def add(self, kind: str, **fields: Any) -> str:
        """Append an entry under the tip and make it the tip; return its id."""
        self._count += 1
        self.now += timedelta(seconds=self._random.randint(1, 20))
        entry_id = f"{self._count:08x}"
        entry = {"type": kind, "id": entry_id, "parentId": self.tip, "timestamp": _iso(self.now), **fields}
        self.lines.append(json.dumps(entry, ensure_ascii=False))
        self.tip = entry_id
        return entry_id

    def ask(self, text: str) -> str:
        """Write a user message; return the id of its exchange."""
        self.now += timedelta(seconds=self._random.randint(20, 240))
        entry_id = self._message({"role": "user", "content": [{"type": "text", "text": text}]})
        return f"{self.session_id}:{entry_id}"

    def call(self, tool: str, arguments: Json, result: str, *, thinking: str = "", is_error: bool = False) -> None:
        """Write an assistant message that calls a tool, and the tool's result."""
        call_id = f"toolu_{self._count:06d}"
        content: list[Json] = [{"type": "thinking", "thinking": thinking}] if thinking else []
        content.append({"type": "toolCall", "id": call_id, "name": tool, "arguments": arguments})
        self._assistant(content, "toolUse")
        self._message(
            {
                "role": "toolResult",
                "toolCallId": call_id,
                "toolName": tool,
                "content": [{"type": "text", "text": result}],
                "details": {"status": "completed", "exitCode": int(is_error), "durationMs": self._random.randint(5, 900)},
                "isError": is_error,
            }
        )

    def answer(self, text: str, *, thinking: str = "") -> None:
        """Write the assistant message that ends an answer."""
        content: list[Json] = [{"type": "thinking", "thinking": thinking}] if thinking else []
        self._assistant([*content, {"type": "text", "text": text}], "stop")

    def fail(self, message: str) -> None:
        """Write an assistant message that ended in an error of the provider."""
        usage = dict.fromkeys(("input", "output", "cacheRead", "cacheWrite", "totalTokens"), 0)
        failed = {"content": [], "provider": "anthropic", "model": MODEL, "usage": usage}
        self._message({"role": "assistant", **failed, "stopReason": "error", "errorMessage": message})

    def _assistant(self, content: list[Json], stop: str) -> None:
        read, written = (self._random.randint(most // 3, most) for most in self.usage)
        self._read = read = self._read + self.growth if self.growth else read
        usage = {"input": read, "output": written, "cacheRead": 0, "cacheWrite": 0, "totalTokens": read + written}
        usage["cost"] = {"total": round(read * 3e-6 + written * 15e-6, 6)}  # type: ignore[assignment]
        said = {"role": "assistant", "content": content, "provider": "anthropic", "model": MODEL, "usage": usage}
        self._message({**said, "stopReason": stop})

    def _message(self, message: Json) -> str:
        return self.add("message", message={**message, "timestamp": int(self.now.timestamp() * 1000)})


def _iso(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%S.000Z")
