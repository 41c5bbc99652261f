"""Messages of a Claude Code transcript: the model's, line by line, and the results of tools."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import msgspec

from streams.sources.agent_entries import call_block, number_of
from streams.sources.media import placeholders_in
from streams.sources.openclaw.text import text_of

MAX_SAID = 256 * 1024
"""Characters of a message's earlier texts that are repeated with each of its lines; more than an exchange keeps."""

Json = dict[str, Any]

_USAGE = {
    "input_tokens": "input",
    "output_tokens": "output",
    "cache_read_input_tokens": "cacheRead",
    "cache_creation_input_tokens": "cacheWrite",
}
_CALLS = frozenset({"tool_use", "server_tool_use", "mcp_tool_use"})
_REMINDER = ("<system-reminder>", "</system-reminder>")
_EXIT_CODE = re.compile(r"(?:Error: )?Exit code (\d{1,9})(?:\n|\Z)")


@dataclass(slots=True)
class Spoken:
    """The lines of one message so far: its text, the largest count of each kind of tokens, its blocks, and why it stopped."""

    text: str | None = None
    usage: dict[str, int | float] = field(default_factory=dict)
    blocks: set[bytes] = field(default_factory=set)
    stop: str | None = None

    def add_blocks(self, blocks: Sequence[Json]) -> list[Json]:
        """Return the blocks that no earlier line of the message has, and remember them."""
        added = []
        for block in blocks:
            digest = blake2b(msgspec.json.encode(block, order="deterministic"), digest_size=16).digest()
            if digest not in self.blocks:
                self.blocks.add(digest)
                added.append(block)
        return added

    def adds_usage(self, usage: Any) -> bool:
        """Tell whether a line counts more tokens than the lines before it."""
        counts = usage if isinstance(usage, dict) else {}
        return any((number_of(counts.get(name)) or 0) > self.usage.get(name, 0) for name in _USAGE)


def spoken(said: Spoken, message: Json, blocks: Sequence[Json]) -> tuple[Json, list[Json], list[Json]]:
    """Return what a line adds to a message: fields and blocks as OpenClaw writes them, and results of tools at the provider.

    The text is that of the whole message so far, because that is the answer; there is none if the message asks for a tool.
    """
    calls = [call_block(block.get("id"), block.get("name"), block.get("input")) for block in blocks if _type(block) in _CALLS]
    thoughts = [block for block in blocks if _type(block) == "thinking"]
    results = [block for block in blocks if _type(block).endswith("_tool_result")]
    text = text_of(blocks)
    if text and (said.text is None or len(said.text) < MAX_SAID):
        said.text = text if said.text is None else f"{said.text}\n{text}"
    stop = message.get("stop_reason")
    stop = stop if isinstance(stop, str) else "tool_use" if calls else None if blocks else said.stop
    said.stop = stop
    fields: Json = {"role": "assistant", "stopReason": stop}
    if isinstance(message.get("model"), str):
        fields["model"] = message["model"]
    usage = _added_usage(said, message.get("usage"))
    if usage is not None:
        fields["usage"] = usage
    if stop != "tool_use":
        calls.append({"type": "text", "text": said.text or ""})
    return fields, thoughts + calls, results


def _added_usage(said: Spoken, given: Any) -> Json | None:
    """Return the usage that the line adds to that of the message's other lines; None if it repeats them."""
    if not isinstance(given, dict) or number_of(given.get("input_tokens")) is None:
        return None
    added: Json = {}
    for theirs, ours in _USAGE.items():
        count = number_of(given.get(theirs)) or 0
        known = said.usage.get(theirs, 0)
        added[ours] = max(count - known, 0)
        said.usage[theirs] = max(count, known)
    return added if any(added.values()) else None


def usage_of(given: Any) -> dict[str, int | float]:
    """Return the tokens that a usage counts, by OpenClaw's names; nothing where there is none."""
    counts = given if isinstance(given, dict) else {}
    return {ours: count for theirs, ours in _USAGE.items() if (count := number_of(counts.get(theirs))) is not None}


def called_tools(blocks: Sequence[Json]) -> dict[str, str]:
    """The names of the tools that a line calls, by the ids of the calls."""
    return {
        block["id"]: block["name"]
        for block in blocks
        if _type(block) in _CALLS and isinstance(block.get("id"), str) and isinstance(block.get("name"), str)
    }


def results_of(blocks: Sequence[Json], body: Json, tools: Mapping[str, str]) -> list[tuple[Json, str]]:
    """The results of tools in a message: fields as OpenClaw writes them, and the text.

    `body` is the line, which says more of a result where it has only one; `tools` has the names of the tools that were called.
    """
    results = [block for block in blocks if _type(block).endswith("tool_result")]
    return [_result(block, body if len(results) == 1 else {}, tools) for block in results]


def _result(block: Json, body: Json, tools: Mapping[str, str]) -> tuple[Json, str]:
    content = block.get("content")
    parts = [part for part in content if isinstance(part, dict)] if isinstance(content, list) else content
    text = text_of(parts)
    call = block.get("tool_use_id")
    failed = isinstance(content, dict) and str(content.get("type")).endswith("_error")
    message: Json = {"role": "toolResult", "isError": block.get("is_error") is True or failed}
    if isinstance(call, str):
        message["toolCallId"] = call
        if call in tools:
            message["toolName"] = tools[call]
    details = dict(_details(body.get("toolUseResult")))
    code = _EXIT_CODE.match(text) if message["isError"] else None
    if code is not None:
        details["exitCode"] = int(code.group(1))
    if details:
        message["details"] = details
    return message, text


def _type(block: Json) -> str:
    kind = block.get("type")
    return kind if isinstance(kind, str) else ""


def _details(given: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(given, dict):
        return
    for name in ("durationMs", "totalDurationMs"):
        if (duration := number_of(given.get(name))) is not None:
            yield "durationMs", duration
            break
    if isinstance(given.get("status"), str):
        yield "status", given["status"]


def texts_of(blocks: Sequence[Json]) -> str:
    """The text of a message without blocks that are nothing but a reminder of the program; the placeholders of what it shows without any."""
    own = [block for block in blocks if not _is_reminder(block)]
    return text_of(own) or placeholders_in(own)


def _is_reminder(block: Json) -> bool:
    text = block.get("text")
    return isinstance(text, str) and text.startswith(_REMINDER[0]) and text.rstrip().endswith(_REMINDER[1])
