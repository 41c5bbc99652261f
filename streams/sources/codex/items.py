"""Items of a Codex rollout: a text in the user's role, a call of a tool, its output."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from streams.sources.agent_entries import call_block, number_of, parsed_object
from streams.sources.media import placeholders_in
from streams.sources.openclaw.text import text_of

Json = dict[str, Any]

CALLS = frozenset(
    {"function_call", "custom_tool_call", "local_shell_call", "tool_search_call", "web_search_call", "image_generation_call"}
)
"""Kinds of items that call a tool."""
OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output", "tool_search_output", "mcp_tool_call_output"})
"""Kinds of items that hold what a tool gave."""

_ARGUMENTS = ("arguments", "input", "action", "query")
_PASSED = "internal_chat_message_metadata_passthrough"
_CONTEXTS = (
    "<environment_context>",
    "<user_instructions>",
    "<permissions instructions>",
    "<skills_instructions>",
    "<collaboration_mode>",
    "<turn_aborted>",
    "<subagent_notification>",
    "<user_shell_command>",
    "<skill>",
    "<codex_internal_context",
    "# AGENTS.md instructions",
)
"""The beginnings of the program's texts in the user's role, in versions that do not say who wrote a text."""
_HEADER = 1024
_EXITED = re.compile(r"^(?:Process exited with code|Exit code:) (-?\d{1,9})$", re.MULTILINE)
_TOOK = re.compile(r"^Wall time: (\d{1,9}(?:\.\d{1,9})?) seconds$", re.MULTILINE)
_REFUSED = ("unsupported call: ", "unsupported custom tool call: ", "failed to parse function arguments: ")
_OUTPUT = "\nOutput:\n"
_FAILED = frozenset({"failed", "declined", "errored"})
_MAX_OUTCOMES = 100_000


class Outcomes:
    """The ends of commands and calls, by call id: reported for the screen before the output for the model."""

    def __init__(self) -> None:
        self._known: dict[str, Json] = {}

    def note(self, kind: str, payload: Json) -> bool:
        """Take an `event_msg` of this kind where it tells of the end of a call; whether it is of such a kind."""
        if kind == "item_completed":
            item = payload.get("item")
            if isinstance(item, dict):
                self._keep(item.get("id"), item)
            return True
        if kind in ("exec_command_end", "mcp_tool_call_end", "patch_apply_end"):
            self._keep(payload.get("call_id"), payload)
            return True
        return False

    def of(self, call_id: Any) -> Json:
        """Return the known facts about the end of a call."""
        return self._known.get(call_id, {}) if isinstance(call_id, str) else {}

    def _keep(self, call_id: Any, given: Json) -> None:
        if not isinstance(call_id, str) or len(self._known) >= _MAX_OUTCOMES:
            return
        told: Json = {}
        if (code := number_of(given.get("exit_code"))) is not None:
            told["exitCode"] = code
        if (duration := _milliseconds(given.get("duration"))) is not None:
            told["durationMs"] = duration
        if isinstance(given.get("status"), str):
            told["status"] = given["status"]
        result = given.get("result")
        failed = given.get("success") is False or (isinstance(result, dict) and "Err" in result)
        if failed or told.get("status") in _FAILED:
            told["failed"] = True
        if told:
            self._known[call_id] = told


def asked_text(payload: Json, blocks: Sequence[Json]) -> str | None:
    """Return the user's own text in a message of the user's role; None if nothing of it is the user's."""
    passed = payload.get(_PASSED)
    kinds = passed.get("content_item_kinds") if isinstance(passed, dict) else None
    if isinstance(kinds, list) and len(kinds) == len(blocks) and kinds:
        own = [block for block, kind in zip(blocks, kinds, strict=True) if isinstance(kind, str) and kind.startswith("user.")]
        return _user_text(own) if own else None
    own = [block for block in blocks if not _is_context(block)]
    return _user_text(own) if own or not blocks else None


def _user_text(blocks: Sequence[Json]) -> str:
    """The text of a user's blocks, without the tags that Codex puts around an image; the placeholders of what they show without any."""
    shown = placeholders_in(blocks)
    texts = [block for block in blocks if not (shown and _is_image_tag(block))]
    return text_of([{**block, "type": "text"} for block in texts]) or shown


def _is_image_tag(block: Json) -> bool:
    text = block.get("text")
    return isinstance(text, str) and (
        text in ("<image>", "</image>") or (text.startswith("<image name=") and text.endswith(">"))
    )


def _is_context(block: Json) -> bool:
    text = block.get("text")
    return isinstance(text, str) and text.lstrip().startswith(_CONTEXTS)


def summary_of(payload: Json) -> str:
    """Return the readable part of a reasoning item: its text, or the summary of it."""
    for name in ("content", "summary"):
        parts = payload.get(name)
        texts = (
            [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
            if isinstance(parts, list)
            else []
        )
        if any(texts):
            return "\n\n".join(texts)
    return ""


def call_of(payload: Json) -> Json:
    """The block of a call; a tool of a namespace is named with it."""
    name: Any = payload.get("name")
    if not isinstance(name, str):
        name = str(payload["type"]).removesuffix("_call")
    elif isinstance(payload.get("namespace"), str) and payload["namespace"]:
        name = f"{payload['namespace']}.{name}"
    given = next((payload[field] for field in _ARGUMENTS if payload.get(field) is not None), None)
    parsed = parsed_object(given)
    call_id = payload.get("call_id", payload.get("id"))
    return call_block(call_id, name, given if parsed is None else parsed)


def output_of(payload: Json, tools: Mapping[str, str], outcomes: Outcomes) -> tuple[Json, str]:
    """Return the output of a tool: fields as OpenClaw writes them, and the text."""
    text, details = _read_output(payload.get("output", payload.get("tools")))
    call_id = payload.get("call_id")
    told = dict(outcomes.of(call_id))
    failed = told.pop("failed", False) or details.pop("failed", False) or text.startswith(_REFUSED)
    details |= told
    code = details.get("exitCode")
    message: Json = {"role": "toolResult", "isError": bool(failed or (code is not None and code != 0))}
    if isinstance(call_id, str):
        message["toolCallId"] = call_id
        if call_id in tools:
            message["toolName"] = tools[call_id]
    if details:
        message["details"] = details
    return message, text


def _read_output(output: Any) -> tuple[str, Json]:
    """The text of an output, and what its form or its first lines say of the end of the call."""
    details: Json = {}
    if isinstance(output, dict):
        details["failed"] = output.get("success") is False
        output = output.get("content")
    if isinstance(output, list):
        parts = [part for part in output if isinstance(part, dict)]
        return text_of([{**part, "type": "text"} for part in parts]), details
    if not isinstance(output, str):
        return "", details
    wrapped = parsed_object(output)
    metadata = None if wrapped is None else wrapped.get("metadata")
    if wrapped is not None and isinstance(metadata, dict) and isinstance(wrapped.get("output"), str):
        if (code := number_of(metadata.get("exit_code"))) is not None:
            details["exitCode"] = code
        if (seconds := number_of(metadata.get("duration_seconds"))) is not None:
            details["durationMs"] = round(seconds * 1000, 3)
        return wrapped["output"], details
    head, found, rest = output[:_HEADER].partition(_OUTPUT)
    if found:
        if (exited := _EXITED.search(head)) is not None:
            details["exitCode"] = int(exited.group(1))
        if (took := _TOOK.search(head)) is not None:
            details["durationMs"] = round(float(took.group(1)) * 1000, 3)
        if details:
            return rest + output[_HEADER:], details
    return output, details


def _milliseconds(duration: Any) -> float | None:
    if not isinstance(duration, dict):
        return None
    seconds, nanos = number_of(duration.get("secs")), number_of(duration.get("nanos"))
    if seconds is None or nanos is None:
        return None
    return round(seconds * 1000 + nanos / 1_000_000, 3)
