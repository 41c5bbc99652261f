"""Made-up lines of Claude Code transcripts, in the form that real ones have (`tests/agents` runs the program)."""

from __future__ import annotations

from itertools import count
from typing import Any

Json = dict[str, Any]

SESSION = "0a000000-0000-4000-8000-000000000001"


class Lines:
    """Writes the lines of one transcript; each line follows the previous one unless it names its parent."""

    def __init__(self, session: str = SESSION, *, prefix: str = "u", minute: int = 0, **always: Any) -> None:
        self.lines: list[Json] = []
        self._session = session
        self._prefix = prefix
        self._always = always
        self._numbers = count(1)
        self._seconds = count(minute * 60)
        self.last: str | None = None

    def bookkeeping(self, kind: str, **fields: Any) -> None:
        """Add a line that is not part of the conversation."""
        self.lines.append({"type": kind, "sessionId": self._session, **fields})

    def add(self, kind: str, *, parent: str | None = "", **fields: Any) -> str:
        """Add a line of the conversation and return its uuid."""
        uuid = f"{self._prefix}{next(self._numbers)}"
        seconds = next(self._seconds)
        line = {
            "parentUuid": self.last if parent == "" else parent,
            "isSidechain": False,
            "type": kind,
            "uuid": uuid,
            "timestamp": f"2026-11-03T09:{seconds // 60:02}:{seconds % 60:02}.000Z",
            "sessionId": self._session,
            "version": "2.1.330",
            **self._always,
            **fields,
        }
        self.lines.append(line)
        self.last = uuid
        return uuid

    def user(self, text: str, **fields: Any) -> str:
        """Add a message of the user."""
        return self.add("user", message={"role": "user", "content": text}, **fields)

    def said(
        self, message_id: str, *blocks: Json, stop: str | None = "end_turn", model: str = "claude-x", **fields: Any
    ) -> str:
        """Add a line of a model's message."""
        usage = {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 7}
        message_usage = fields.pop("usage", usage)
        message = {"id": message_id, "type": "message", "role": "assistant", "model": model, "content": list(blocks)}
        return self.add("assistant", message={**message, "stop_reason": stop, "usage": message_usage}, **fields)

    def result(self, call: str, text: Any, *, is_error: bool = False, **fields: Any) -> str:
        """Add the result of a tool call."""
        block = {"type": "tool_result", "tool_use_id": call, "content": text, "is_error": is_error}
        return self.add("user", message={"role": "user", "content": [block]}, **fields)


def text(content: str) -> Json:
    """Return a text block of the model."""
    return {"type": "text", "text": content}


def thinking(content: str) -> Json:
    """Return a thinking block of the model."""
    return {"type": "thinking", "thinking": content, "signature": "c2ln"}


def call(call_id: str, name: str, **arguments: Any) -> Json:
    """Return a tool-use block."""
    return {"type": "tool_use", "id": call_id, "name": name, "input": arguments}


def everything() -> list[Json]:
    """Return a transcript with one line of every kind that the source reads."""
    lines = Lines()
    lines.bookkeeping("queue-operation", operation="enqueue", timestamp="2026-11-03T08:59:59.000Z", content="q")
    lines.user("Is the backup healthy?")
    lines.add("attachment", attachment={"type": "date", "date": "2026-11-03"})
    lines.said("m1", thinking("Look at the log."), stop="tool_use")
    lines.said("m1", text("Let me look."), stop="tool_use")
    first = lines.said("m1", call("t1", "Bash", command="tail log"), stop="tool_use")
    second = lines.said("m1", call("t2", "Read", file_path="/x"), stop="tool_use")
    lines.result("t2", [text("no such file")], is_error=True, parent=second)
    lines.result("t1", "Exit code 3\nERROR: disk full", is_error=True, parent=first, toolUseResult={"durationMs": 84})
    lines.add("system", subtype="api_error", error={"message": "529 overloaded", "status": 529}, retryAttempt=1)
    lines.said("m2", text("No: "))
    lines.said("m2", text("the disk is full."))
    lines.add("system", subtype="turn_duration", durationMs=5)
    lines.add(
        "system", subtype="compact_boundary", parent=None, logicalParentUuid=lines.last, compactMetadata={"preTokens": 900}
    )
    lines.user("This session is being continued", isCompactSummary=True)
    lines.user("<command-name>/model</command-name>")
    lines.user("<local-command-stdout>Set model</local-command-stdout>")
    lines.user("And db3?")
    lines.said("m3", text("It is fine."), model="claude-y")
    lines.user("<task-notification>done</task-notification>", promptSource="system", origin={"kind": "task-notification"})
    lines.said("m4", text("The task is done."), model="claude-y")
    lines.user("Stop.")
    lines.user("[Request interrupted by user]")
    lines.user("Again?")
    lines.add(
        "assistant",
        isApiErrorMessage=True,
        message={"id": "e1", "role": "assistant", "model": "<synthetic>", "content": [text("API Error: 400")]},
    )
    lines.bookkeeping("last-prompt", lastPrompt="Again?", leafUuid=lines.last)
    return lines.lines
