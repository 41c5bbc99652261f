"""Made-up lines of Codex rollouts, in the form that real ones have (`tests/agents` runs the program)."""

from __future__ import annotations

import json
from typing import Any

Json = dict[str, Any]

SESSION = "01a20000-0000-7000-8000-000000000001"


class Lines:
    """Writes the lines of one rollout."""

    def __init__(self, *, ordinals: bool = True, **meta: Any) -> None:
        self.lines: list[Json] = []
        self._ordinals = ordinals
        self._read = self._written = 0
        self.add("session_meta", id=SESSION, cwd="/srv/ops", cli_version="0.169.0", model_provider="openai", **meta)

    def add(self, kind: str, **payload: Any) -> None:
        """Add a line."""
        number = len(self.lines)
        line: Json = {"timestamp": f"2026-11-03T09:{number // 60:02}:{number % 60:02}.000Z", "type": kind, "payload": payload}
        self.lines.append(line | ({"ordinal": number} if self._ordinals else {}))

    def event(self, kind: str, **payload: Any) -> None:
        """Add an event for the terminal."""
        self.add("event_msg", type=kind, **payload)

    def item(self, kind: str, **payload: Any) -> None:
        """Add an item of the conversation with the model."""
        self.add("response_item", type=kind, **payload)

    def turn(self, text: str, model: str = "gpt-x") -> None:
        """Add the start of a turn and the user's message."""
        self.event("task_started", turn_id="t", model_context_window=1000)
        self.add("turn_context", model=model, cwd="/srv/ops")
        self.user(text)

    def user(self, text: str, kind: str | None = "user.text") -> None:
        """Add a text in the user's role; without a kind, in the format of older versions."""
        passed = {} if kind is None else {"internal_chat_message_metadata_passthrough": {"content_item_kinds": [kind]}}
        self.item("message", role="user", content=[{"type": "input_text", "text": text}], **passed)

    def said(self, text: str, **payload: Any) -> None:
        """Add a text of the model."""
        self.item("message", role="assistant", content=[{"type": "output_text", "text": text}], **payload)

    def call(self, call_id: str, name: str, **arguments: Any) -> None:
        """Add a tool call."""
        self.item("function_call", id=f"fc_{call_id}", call_id=call_id, name=name, arguments=json.dumps(arguments))

    def output(self, call_id: str, output: Any) -> None:
        """Add the output of a tool."""
        self.item("function_call_output", call_id=call_id, output=output)

    def usage(self, input_tokens: int, output_tokens: int, *, window: int = 1000) -> None:
        """Add the token usage of a response."""
        self._read, self._written = self._read + input_tokens, self._written + output_tokens
        last = {
            "input_tokens": input_tokens,
            "cached_input_tokens": input_tokens // 2,
            "output_tokens": output_tokens,
            "total_tokens": input_tokens + output_tokens,
        }
        total = {"input_tokens": self._read, "output_tokens": self._written, "total_tokens": self._read + self._written}
        info = {"total_token_usage": total, "last_token_usage": last, "model_context_window": window}
        self.event("token_count", info=info, rate_limits=None)

    def repeat_usage(self) -> None:
        """Repeat the last usage line, as the program does."""
        last = next(line for line in reversed(self.lines) if line["payload"].get("type") == "token_count")
        self.event(**{"kind": "token_count", **{name: value for name, value in last["payload"].items() if name != "type"}})


def exec_output(code: int, text: str) -> str:
    """Return the output of a command in the format that the model sees."""
    return f"Chunk ID: 1\nWall time: 0.5000 seconds\nProcess exited with code {code}\nOriginal token count: 2\nOutput:\n{text}"


def everything() -> list[Json]:
    """Return a rollout with one line of every kind that the source reads."""
    lines = Lines()
    lines.user("<environment_context>\n  <cwd>/srv/ops</cwd>\n</environment_context>", "environments.environment_context")
    lines.turn("Is the backup healthy?")
    lines.item("reasoning", id="rs_1", summary=[{"type": "summary_text", "text": "Look at the log."}])
    lines.said("Let me look.")
    lines.call("c1", "exec_command", cmd="tail log")
    lines.usage(100, 10)
    ended = {
        "type": "CommandExecution",
        "id": "c1",
        "exit_code": 3,
        "status": "failed",
        "duration": {"secs": 1, "nanos": 500_000_000},
    }
    lines.event("item_completed", item=ended)
    lines.output("c1", exec_output(3, "ERROR: disk full"))
    lines.repeat_usage()
    lines.event("stream_error", message="503")
    lines.said("No: the disk is full.")
    lines.usage(200, 20)
    lines.event("task_complete", last_agent_message="No: the disk is full.")
    lines.turn("And db3?", model="gpt-y")
    lines.item("message", role="assistant", content=[{"type": "output_text", "text": "So far: the disk is full."}])
    lines.lines[-1]["metadata"] = {"compaction_output": True}
    lines.usage(300, 30)
    lines.add("compacted", message="So far: the disk is full.", replacement_history=[])
    lines.item("custom_tool_call", call_id="c2", name="apply_patch", input="*** Begin Patch")
    lines.item("custom_tool_call_output", call_id="c2", output=json.dumps({"output": "ok", "metadata": {"exit_code": 0}}))
    lines.said("It is fine.")
    lines.usage(150, 15)
    lines.event("task_complete", last_agent_message="It is fine.")
    lines.event("task_started", turn_id="t3")
    lines.user("<goal_context>go on</goal_context>", "goal.context")
    lines.said("I go on.")
    lines.usage(160, 16)
    lines.turn("Stop.", model="gpt-y")
    lines.event("turn_aborted", reason="interrupted")
    lines.turn("Again?", model="gpt-y")
    lines.event("task_complete", last_agent_message=None, error={"message": "400 scripted"})
    return lines.lines
