"""Messages in whatever shape an instrumentor writes them: as parts, as blocks of content, or flat as chat completions have them.

The shapes are told apart by the names of their fields, not by who wrote them, because frameworks pass on what their providers sent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from audit.fingerprints import canonical_json
from audit.surrogates import json_bytes
from streams.sources.otlp.attributes import parsed
from streams.sources.otlp.span_facts import ToolCall, ToolResult
from streams.sources.otlp.tool_errors import failed_by_result

Json = Mapping[str, Any]
ROLES = {
    "human": "user", "ai": "assistant", "model": "assistant", "function": "tool", "tool_response": "tool", "developer": "system",
    "humanmessage": "user", "aimessage": "assistant", "toolmessage": "tool", "systemmessage": "system", "bot": "assistant",
    "humanmessagechunk": "user", "aimessagechunk": "assistant", "system": "system", "tool": "tool", "user": "user", "assistant": "assistant",
}  # fmt: skip
"""The roles by all the names they have somewhere."""


class Message(msgspec.Struct):
    """One message: what was said in it, thought, called and returned."""

    role: str
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    results: list[ToolResult] = []
    compacted: bool = False
    finish: str | None = None

    @property
    def text(self) -> str:
        """Its texts, joined by line ends."""
        return "\n".join(self.texts)


def messages_of(value: Any, role: str = "user") -> list[Message]:
    """The messages of a value: a list of them, one of them, an object that holds them, or a text of the given role."""
    if isinstance(value, str):
        return [Message(role, texts=[value])] if value else []
    if isinstance(value, dict):
        if isinstance(value.get("output"), dict):
            return messages_of(value["output"], role)
        inner = next((value[name] for name in _HOLDERS if isinstance(value.get(name), list)), None)
        return messages_of(inner, role) if inner is not None else [message_of(value, role)] if _is_message(value) else []
    return _listed(value, role) if isinstance(value, list) else []


def _listed(value: list[Any], role: str) -> list[Message]:
    """The messages of a list: each is one, or all together are the blocks of one."""
    if value and isinstance(value[0], list) and all(isinstance(one, list) for one in value):
        # LangChain has a list of messages for each prompt of a batch.
        return messages_of(value[0], role)
    if any(isinstance(one, dict) and _is_message(one) for one in value):
        return [message_of(one, role) for one in value if isinstance(one, dict)]
    joined = Message(role)
    _add_blocks(joined, value)
    return [joined] if joined.texts or joined.calls or joined.results or joined.thoughts else []


def message_of(given: Json, role: str = "user") -> Message:
    """The message that an object is."""
    inner = _wrapped(given)
    if inner is not None:
        named = given["id"][-1] if isinstance(given.get("id"), list) and given["id"] else given.get("type", role)
        return message_of({"finish_reason": _finish(given), **inner, "type": str(named)}, role)
    message = Message(_role(given, role))
    for name in _PARTS:
        if name in given:
            _add_content(message, given[name])
    if not message.texts and "content" in given:
        _add_content(message, _content(given["content"]))
    if not _THOUGHTS.isdisjoint(given):
        for name in _THOUGHT_NAMES:
            _add_text(message.thoughts, given.get(name))
    if calls := given.get("tool_calls") or given.get("toolCalls"):
        _add_calls(message, calls)
    if message.role == "tool" and not message.results:
        message.results.append(_result(given, message.text))
        message.texts = []
    message.finish = _finish(given)
    return message


def _finish(given: Json) -> str | None:
    if _FINISHES.isdisjoint(given):
        return None
    about = given.get("generation_info")
    beside = _named(about, "finish_reason") if isinstance(about, dict) else None
    return _named(given, *_FINISH_NAMES) or beside


def _wrapped(given: Json) -> Json | None:
    """The message inside a choice of a chat completion, or inside what LangChain makes of one."""
    if _WRAPPING.isdisjoint(given):
        return None
    for name in _WRAPPERS:
        if isinstance(inner := given.get(name), dict):
            return inner
    return None


def _add_calls(message: Message, calls: Any) -> None:
    """Add the calls that stand beside the content and are not among its blocks."""
    known = {call.call_id for call in message.calls} - {None}
    told = [_call(call) for call in calls if isinstance(call, dict)] if isinstance(calls, list) else []
    message.calls += [call for call in told if call.call_id not in known]


def _content(value: Any) -> Any:
    """The content of a message: a text of blocks as the blocks, any other as it is, for a tool may answer in JSON."""
    blocks = parsed(value).value
    return blocks if isinstance(blocks, list) and blocks and all(_is_block(one) for one in blocks) else value


def _is_block(value: Any) -> bool:
    return isinstance(value, dict) and value.get("type") in _BLOCKS


def _is_message(given: Json) -> bool:
    return (
        "role" in given
        or "parts" in given
        or _wrapped(given) is not None
        or (given.get("type") in ROLES and "content" in given)
    )


def _role(given: Json, role: str) -> str:
    name = given.get("role")
    if type(name) is str and (known := ROLES.get(name)) is not None:
        return known
    name = name or (given.get("type") if str(given.get("type")).lower() in ROLES else None) or role
    lower = str(name).lower()
    return ROLES.get(lower, lower)


def _add_content(message: Message, content: Any) -> None:
    if isinstance(content, list):
        _add_blocks(message, content)
    elif isinstance(content, dict):
        _add_blocks(message, [content])
    else:
        _add_text(message.texts, content)


def _add_blocks(message: Message, blocks: Iterable[Any]) -> None:
    for block in blocks:
        if isinstance(block, str):
            _add_text(message.texts, block)
        elif isinstance(block, dict):
            add = _BLOCKS.get(str(block.get("type", "text" if "text" in block or "content" in block else "")))
            if add is not None:
                add(message, block)


def _text_block(message: Message, block: Json) -> None:
    _add_text(message.texts, _first(block, "content", "text"))


def _thought_block(message: Message, block: Json) -> None:
    summary = block.get("summary")
    if isinstance(summary, list):
        message.thoughts += [one["text"] for one in summary if isinstance(one, dict) and isinstance(one.get("text"), str)]
        return
    _add_text(message.thoughts, _first(block, "content", "thinking", "reasoning", "text", "summary"))


def _call_block(message: Message, block: Json) -> None:
    message.calls.append(_call(block))


def _result_block(message: Message, block: Json) -> None:
    message.results.append(_result(block, None))


def _compaction_block(message: Message, _block: Json) -> None:
    message.compacted = True


def _call(given: Json) -> ToolCall:
    function = given.get("function")
    inner = function if isinstance(function, dict) else given
    arguments = parsed(_first(inner, "arguments", "args", "input")).value
    return ToolCall(_named(inner, "name", "toolName", "tool_name"), _id(given), arguments)


def _result(given: Json, text: str | None) -> ToolResult:
    output = _first(given, "response", "result", "output", "content")
    failed = failed_by_result(given)
    if failed is None:
        failed = True if given.get("status") == "error" else failed_by_result(output)
    text = text if text is not None else text_of(output)
    return ToolResult(text, _named(given, "name", "toolName", "tool_name"), _id(given), failed)


def text_of(value: Any) -> str:
    """The text of a value: of content its texts, of anything else its JSON."""
    if isinstance(value, str):
        return value
    if value is None:
        return ""
    if is_text(value):
        return "\n".join(one["text"] for one in value)
    if isinstance(value, dict) and set(value) == {"type", "value"}:
        return text_of(value["value"])
    try:
        return canonical_json(value)
    except ValueError:  # an infinity, which attributes can hold and JSON cannot
        return json_bytes(value).decode()


def is_text(value: Any) -> bool:
    """Tell whether a value is a list of blocks of text."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(isinstance(one, dict) and isinstance(one.get("text"), str) for one in value)
    )


def _add_text(texts: list[str], value: Any) -> None:
    if isinstance(value, str) and value:
        texts.append(value)


def _first(given: Json, *names: str) -> Any:
    for name in names:
        if (value := given.get(name)) is not None:
            return value
    return None


def _named(given: Json, *names: str) -> str | None:
    for name in names:
        if isinstance(value := given.get(name), str) and value:
            return value
    return None


def _id(given: Json) -> str | None:
    return _named(given, "tool_call_id", "tool_use_id", "toolCallId", "call_id", "id")


def unflattened(values: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """The objects of a list that was written flat: `PREFIX.0.role`, `PREFIX.0.tool_calls.1.name` and so on, in order."""
    tree: dict[str, Any] = {}
    start = len(prefix) + 1
    for name, value in values.items():
        if not name.startswith(prefix) or name[start - 1 : start] != ".":
            continue
        node, steps = tree, [step for step in name[start:].split(".") if step not in _UNWRAPPED]
        for step in steps[:-1]:
            inner = node.setdefault(step, {})
            if not isinstance(inner, dict):
                break
            node = inner
        else:
            if steps:
                node[steps[-1]] = value
    found = _lists(tree)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def _lists(node: Any) -> Any:
    """The tree with a list for each node whose names are numbers."""
    if not isinstance(node, dict):
        return node
    if node and all(name.isdecimal() and len(name) <= _DIGITS for name in node):
        return [_lists(node[name]) for name in sorted(node, key=int)]
    return {name: _lists(value) for name, value in node.items()}


_UNWRAPPED = frozenset({"message", "message_content", "tool_call"})
"""Steps of OpenInference's flat names that only say what follows."""
_DIGITS = 6
"""Digits of the longest number that is a place in a list."""
_HOLDERS = ("messages", "input", "output", "choices", "generations", "prompt")
_WRAPPERS = ("kwargs", "data", "message")
_WRAPPING = frozenset(_WRAPPERS)
_PARTS = ("parts", "contents")
_THOUGHT_NAMES = ("thinking", "reasoning", "reasoning_content")
_THOUGHTS = frozenset(_THOUGHT_NAMES)
_FINISH_NAMES = ("finish_reason", "stop_reason", "finishReason")
_FINISHES = frozenset({*_FINISH_NAMES, "generation_info"})
_BLOCKS: dict[str, Callable[[Message, Json], None]] = {
    **dict.fromkeys(("text", "input_text", "output_text"), _text_block),
    **dict.fromkeys(("reasoning", "thinking"), _thought_block),
    **dict.fromkeys(("tool_call", "tool-call", "tool_use", "toolCall", "function_call"), _call_block),
    **dict.fromkeys(("tool_call_response", "tool-result", "tool_result", "tool_return", "function_call_output"), _result_block),
    "compaction": _compaction_block,
}
"""What a block of content adds to its message, by its type."""
