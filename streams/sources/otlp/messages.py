"""The messages of a span: those sent to a model and those it returned, in every attribute and shape that instrumentors write.

One normalizer reads parts, content blocks and flat chat completions. It recognizes a shape by its field names, not by the instrumentor,
because frameworks pass on what their providers sent:

1. A value is a text, a list, an object, or JSON text of one of these, possibly encoded twice.
2. An object is a message (it has a role or parts, or wraps such an object), a holder of messages under a known name, a content block, or the
   arguments or result of a function. The text of the latter is its member with the question or answer.
3. A block is identified by its `type`, else by the key that holds it (`text`, `function_call`, `toolUse`, `inline_data` …).
4. The `repr` of a Python object (`ChatMessage(_role=…`) is not a message.
5. A tool that catches its exception reports the failure in its result and leaves the status of its span unset. Only the envelope of a result
   tells: a result whose content mentions errors, or whose `error` is null, is a success.

The spans of a trace repeat messages: an agent repeats those of its requests, and a framework those of its provider. So each text is read only
once per OTLP request.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from audit.fingerprints import canonical_json
from audit.surrogates import json_bytes
from streams.sources.media import join_placeholders, placeholder_of
from streams.sources.otlp import conventions
from streams.sources.otlp.attributes import parse_json
from streams.sources.otlp.conventions import MessageAttribute
from streams.sources.otlp.kinds import PresentAttributes
from streams.sources.otlp.span_facts import Kind, ToolCall, ToolResult

if TYPE_CHECKING:
    from streams.sources.otlp.received import Event


MAX_CACHED_TEXTS = 512
"""Maximum number of texts whose messages are cached within a request."""
MAX_CACHED_TEXT = 32 * 1024
"""Maximum length of a text whose messages are cached."""
Attributes = Mapping[str, Any]
_MESSAGE_FIELDS = frozenset({"role", "content", "parts", "message", "tool_calls"})
"""Fields of a message, or of a choice that wraps a message."""
_ENCODED_FIELDS = frozenset({"message", "tool_calls"})
"""Fields that are written as JSON text, because an attribute cannot hold an object."""
_CERTAIN_MESSAGE_FIELDS = frozenset({"role", "parts", "finish_reason"})
"""Fields that distinguish a message in the content of an event from JSON that a user or a model wrote."""
_ROLE_PREFIX = re.compile(r"^(user|assistant|system|tool|developer): ", re.MULTILINE)
Json = Mapping[str, Any]
MAX_NESTED = 8
"""Maximum depth of nested messages, content and envelopes that are read."""
ROLES = {
    "human": "user", "ai": "assistant", "model": "assistant", "function": "tool", "tool_response": "tool", "developer": "system",
    "humanmessage": "user", "aimessage": "assistant", "toolmessage": "tool", "systemmessage": "system", "bot": "assistant",
    "humanmessagechunk": "user", "aimessagechunk": "assistant", "system": "system", "tool": "tool", "user": "user", "assistant": "assistant",
}  # fmt: skip
"""Role by each of the names that senders use for it."""
ELIDED = frozenset({"<elided>", "<not specified>", "<not serializable>", "redacted-by-litellm"})
"""Placeholders of Google's ADK and LiteLLM for values that they withhold."""
_UNWRAPPED = frozenset({"message", "message_content", "tool_call"})
"""Steps of OpenInference's flat names that add nothing to the next step."""
_MAX_INDEX_DIGITS = 6
"""Maximum number of digits of a list index in a flat name."""
_MAX_STEPS = 32
"""Maximum number of steps into which a flat name is split. A malicious sender can write thousands."""
_REPR = re.compile(
    r"[\[(]{0,2}[A-Z]\w{0,127}\((?:\s{0,64}\w{1,64}=|\))"  # ChatMessage(_read_role=…
    r"|\{'\w{1,64}': \[?[A-Z]\w{0,127}\(\w{1,64}="  # {'messages': [ChatMessage(_read_role=…
    r"|<[\w.]{1,256} object at 0x"  # <crewai.agent.Agent object at 0x7f…
    r"|\w{1,64}=(?:['\"\[{]|None\b|[A-Z]\w{0,127}\().{0,4096}? \w{1,64}=(?:['\"\[{]|None\b|True\b|False\b|[A-Z]\w{0,127}\()",
    re.DOTALL,
)
"""The repr of a Python object: its class with named fields, its address, or at least two fields of a Pydantic model."""
_REPR_END = re.compile(r"(?:[)\]>}'\"\d…]|\.\.\.|None|True|False)\s*\Z")
_MAX_REPR_END = 16
_HOLDERS = (
    "messages", "inputs", "new_message", "contents", "items", "history", "input", "prompt", "message", "content", "output", "choices", "candidates",
    "generations", "response", "chat_message", "replies", "outputs",
)  # fmt: skip
"""Members that hold sent messages, in order of preference."""
_ANSWER_HOLDERS = (
    "outputs", "choices", "candidates", "generations", "output", "message", "chat_message", "content", "replies", "messages", "last_message",
    "response", "items", "input", "prompt",
)  # fmt: skip
"""Members that hold returned messages, in order of preference."""
_QUESTIONS = (
    "task", "question", "query", "user_msg", "user_message", "user_input", "user_query", "user_prompt", "prompt", "input", "message",
    "messages", "text", "content", "value",
)  # fmt: skip
"""Members of the arguments of an agent or chain that are the question if they are texts."""
_ANSWERS = (
    "answer", "final_answer", "response", "output", "final_output", "result", "completion", "reply", "text", "content", "message", "raw", "value",
)  # fmt: skip
"""Members of the result of an agent or chain that are the answer if they are texts."""
_ALL_HOLDERS = frozenset((*_HOLDERS, *_ANSWER_HOLDERS))
_ENVELOPES = ("input_args", "inputs", "kwargs")
"""Members that wrap the arguments of a function."""
_WRAPPER_MEMBERS = ("kwargs", "data", "message")
_WRAPPER_SET = frozenset(_WRAPPER_MEMBERS)
_MESSAGE_MEMBERS = frozenset({"role", "content", "parts", "tool_calls", "toolCalls", "function_call"})
"""Members that identify a message inside another object."""
_PART_MEMBERS = ("parts", "contents", "blocks")
_CONTENT_MEMBERS = ("content", "message", "text")
_THOUGHT_NAMES = ("thinking", "reasoning", "reasoning_content")
_THOUGHT_SET = frozenset(_THOUGHT_NAMES)
_FINISH_NAMES = ("finish_reason", "stop_reason", "finishReason")
_FINISH_SET = frozenset({*_FINISH_NAMES, "generation_info"})
_OUTPUT_BLOCKS = ("content", "blocks")
"""Members of a tool's output that hold its blocks, in MCP and LlamaIndex."""
FLAGS = ("gen_ai.tool.is_error", "tool.is_error", "mcp.tool.is_error", "lk.function_tool.is_error", "is_error")
"""Attributes of a tool's span that are true if it failed."""
STATUSES = ("gen_ai.tool.status", "gen_ai.tool.call.status", "tool.status", "mcp.tool.status")
"""Attributes of a tool's span with its final status."""
_FAILED_STATUSES = frozenset({"error", "failed", "failure", "timeout"})
_FLAG_NAMES = ("isError", "is_error")
_FAILED_TYPES = frozenset({"error-text", "error-json", "tool-error", "tool_error", "tool_result_error"})
"""Types of failed results in Vercel's AI SDK and of Anthropic's server tools."""
_STATUS_SIBLINGS = frozenset({"content", "message", "error", "toolUseId", "tool_use_id", "tool_call_id", "toolCallId"})
"""Members that identify a `status` beside them as the status of a call. Other objects, such as tickets, have a status, too."""
_RESULT_HOLDERS = ("result", "output", "response", "kwargs")
_CALL_MEMBERS = frozenset(
    {"jsonrpc", "id", "lc", "type", "name", "toolName", "toolCallId", "tool_call_id", "tool_use_id", "toolUseId", "call_id"}
)
"""Members of an envelope that only identify the call."""
_ENVELOPE_MEMBERS = frozenset({*_FLAG_NAMES, *_RESULT_HOLDERS, "type", "status", "jsonrpc"})
"""Members of envelopes: each envelope has at least one of them."""
_MAX_DEPTH = 4


class SpanMessages(NamedTuple):
    """The messages sent to a model, or those returned by it. The fields after `is_cut` are only set for sent messages."""

    messages: Sequence[Message] = ()
    is_cut: bool = False
    """True if part of the messages was lost."""
    question: str | None = None
    """Text of the user's last message, or placeholders for its media."""
    results: tuple[ToolResult, ...] = ()
    """Tool outputs after the model's last message. Earlier outputs were sent with an earlier request."""
    thoughts: tuple[str, ...] = ()
    """Thoughts of the previous answer, if only tool outputs follow it. Some senders record them nowhere else."""
    compacted: bool = False

    @property
    def has_content(self) -> bool:
        """True if any message has content. Some senders write a message without parts, and put its content elsewhere."""
        return any(message.has_content for message in self.messages)


class ConversationReader:
    """Reads the conversations of the spans of one OTLP request."""

    def __init__(self) -> None:
        self._cache: dict[tuple[str, str], SpanMessages] = {}

    def read(
        self, attributes: Attributes, present: PresentAttributes, events: Sequence[Event], kind: Kind
    ) -> tuple[SpanMessages, SpanMessages]:
        """Return the messages sent to the model, and those it returned."""
        request = self._read_first(present.request, attributes, "user")
        response = self._read_first(present.response, attributes, "assistant")
        if (present.conversations or events) and not (response.has_content and request.has_content):
            request, response = self._fill_missing(request, response, attributes, present, events)
        if response.messages and kind not in ("inference", "log"):
            if request.question is None:
                # An agent may return a state with the question, although its input had none.
                question = _build_request(response.messages, is_cut=response.is_cut).question
                request = request._replace(question=question)
            response = response._replace(messages=_find_last_answer(response.messages))
        return request, response

    def _fill_missing(
        self,
        request: SpanMessages,
        response: SpanMessages,
        attributes: Attributes,
        present: PresentAttributes,
        events: Sequence[Event],
    ) -> tuple[SpanMessages, SpanMessages]:
        """Return both directions. One without content is read from an attribute with the whole conversation, or from events."""
        conversation = self._read_first(present.conversations, attributes, "user")
        for questions, answers in (_split_conversation(conversation.messages), _read_events(events)):
            if questions and not request.has_content:
                request = _build_request(questions, is_cut=request.is_cut)
            if answers and not response.has_content:
                response = SpanMessages(answers, response.is_cut)
        return request._replace(is_cut=request.is_cut or conversation.is_cut), response

    def _read_first(self, sources: Iterable[MessageAttribute], attributes: Attributes, role: str) -> SpanMessages:
        """Return the messages of the first attribute that has messages with content, else of the first that has messages."""
        without_content = _NO_MESSAGES
        for source in sources:
            messages = self._read_cached(source, attributes, role)
            if messages.has_content:
                return messages
            if not without_content.messages:
                without_content = messages
        return without_content

    def _read_cached(self, source: MessageAttribute, attributes: Attributes, role: str) -> SpanMessages:
        text = attributes.get(source.name) if source.shape == "json" else None
        if not isinstance(text, str) or len(text) > MAX_CACHED_TEXT:
            return _read_attribute(source, attributes, role)
        messages = self._cache.get((role, text))
        if messages is None:
            messages = _read_attribute(source, attributes, role)
            if len(self._cache) >= MAX_CACHED_TEXTS:
                self._cache.clear()
            self._cache[role, text] = messages
        return messages


def _build_request(messages: Sequence[Message], *, is_cut: bool) -> SpanMessages:
    """Return messages sent to a model, with the fields derived from them."""
    if not messages:
        return SpanMessages(messages, is_cut)
    last_answer = _find_last_answer_index(messages)
    after_answer = messages[last_answer + 1 :]
    thoughts: tuple[str, ...] = ()
    if last_answer >= 0 and all(message.results for message in after_answer):
        thoughts = _collect_thoughts(messages, last_answer)
    return SpanMessages(
        messages,
        is_cut,
        question=_find_last_question(messages),
        results=tuple([result for message in after_answer for result in message.results]),
        thoughts=thoughts,
        compacted=any(message.compacted for message in messages),
    )


def _find_last_question(messages: Sequence[Message]) -> str | None:
    for message in reversed(messages):
        if message.role == "user" and message.is_user_turn:
            return message.text
    return None


def _find_last_answer_index(messages: Sequence[Message]) -> int:
    """Return the index of the model's last message; -1 if there is none."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "assistant":
            return index
    return -1


def _collect_thoughts(messages: Sequence[Message], last: int) -> tuple[str, ...]:
    """Return the thoughts of the unbroken run of the model's messages that ends at `last`."""
    first = last
    while first and messages[first - 1].role == "assistant":
        first -= 1
    return tuple([thought for message in messages[first : last + 1] for thought in message.thoughts])


def _find_last_answer(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the last answer in the output of an agent or chain, with all thoughts of its turn. The output may be the whole history."""
    last_question = max(
        (index for index, message in enumerate(messages) if message.role == "user" and message.is_user_turn), default=-1
    )
    turn = [message for message in messages[last_question + 1 :] if message.role == "assistant"]
    if len(turn) < 2:
        return turn
    return [msgspec.structs.replace(turn[-1], thoughts=[thought for message in turn for thought in message.thoughts])]


def _split_conversation(messages: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    """Return the messages of a conversation before its final answer, and the final answer."""
    last = _find_last_answer_index(messages)
    if last < 0 or last < len(messages) - 1:
        return messages, ()
    return messages[:last], messages[last:]


def _read_events(events: Iterable[Event]) -> tuple[list[Message], list[Message]]:
    """Return the messages in events: those sent to the model, and those it returned."""
    sent: list[Message] = []
    returned: list[Message] = []
    for event in events:
        role = conventions.MESSAGE_EVENTS.get(event.name)
        if role == "choice":
            returned += _read_event(event, "assistant")
        elif role is not None:
            sent += _read_event(event, role)
    return sent, returned


def _read_event(event: Event, role: str) -> list[Message]:
    """Return the messages of an event. They are in its attributes, in one attribute with the whole message, or in JSON text of its body."""
    attributes = event.attributes
    if "role" not in attributes:
        whole_message = _find_first_member(attributes, *conventions.EVENT_CONTENT)
        value = parse_json(attributes.get("content") if whole_message is None else whole_message).value
        message_fields = _CERTAIN_MESSAGE_FIELDS if whole_message is None else _MESSAGE_FIELDS
        if isinstance(value, dict) and not message_fields.isdisjoint(value):
            return [build_message({"role": role, **value}, role)]
        if whole_message is not None:
            return (_read_role_lines(value) if isinstance(value, str) else []) or read_messages(value, role)
    fields = {name: parse_json(value).value if name in _ENCODED_FIELDS else value for name, value in attributes.items()}
    if isinstance(fields.get("message"), dict) and "content" not in fields:
        return [build_message({"role": role, "finish_reason": fields.get("finish_reason"), **fields["message"]}, role)]
    return [build_message({"role": role, **fields}, role)]


def _read_role_lines(text: str) -> list[Message]:
    """Return the messages in a text in which each starts with its role, as OpenLIT writes it: `user: Is it open?`."""
    prefixes = list(_ROLE_PREFIX.finditer(text))
    if not prefixes or prefixes[0].start():
        return []
    messages = []
    for index, prefix in enumerate(prefixes):
        end = prefixes[index + 1].start() if index + 1 < len(prefixes) else len(text)
        messages.append(build_message({"role": prefix[1], "content": text[prefix.end() : end].strip()}))
    return messages


def _read_attribute(source: MessageAttribute, attributes: Attributes, role: str) -> SpanMessages:
    """Return the messages in an attribute."""
    value = attributes.get(source.name)
    is_cut = False
    if source.shape == "flat":
        messages = [build_message(item, role) for item in unflatten(attributes, source.name)]
    elif source.shape == "text":
        messages = [build_message({"role": role, "content": value})] if value else []
    elif source.shape == "tasks":
        messages = _read_task(value)
    else:
        read = parse_json(value)
        messages = read_messages(read.value, role)
        is_cut = read.is_cut
    return _build_request(messages, is_cut=is_cut) if role == "user" else SpanMessages(messages, is_cut)


def _read_task(value: Any) -> list[Message]:
    """Return the question in the only task of a CrewAI crew. A description with placeholders is a template, not a question."""
    tasks = parse_json(value).value
    if not isinstance(tasks, list) or len(tasks) != 1 or not isinstance(tasks[0], dict):
        return []
    text = tasks[0].get("description")
    return [Message("user", texts=[text])] if isinstance(text, str) and text and "{" not in text else []


def is_elided(value: Any) -> bool:
    """Return whether the sender withheld a value, or all members of an object."""
    parts = value.values() if isinstance(value, dict) else (value,)
    return bool(parts) and all(isinstance(part, str) and part in ELIDED for part in parts)


class Message(msgspec.Struct):
    """One message. `media` are placeholders for content other than text."""

    role: str
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    results: list[ToolResult] = []
    media: list[str] = []
    compacted: bool = False
    finish: str | None = None

    @property
    def text(self) -> str:
        """The texts, joined by line breaks; the media placeholders if there are none."""
        return "\n".join(self.texts) or join_placeholders(self.media)

    @property
    def is_user_turn(self) -> bool:
        """True if a message in the user's role is a turn of the user, not only tool outputs."""
        return bool(self.texts) or (bool(self.media) and not self.results)

    @property
    def has_content(self) -> bool:
        """True if the message is not empty."""
        return bool(self.texts or self.calls or self.results or self.thoughts or self.media or self.compacted)


def read_messages(value: Any, role: str = "user", depth: int = MAX_NESTED) -> list[Message]:
    """Return the messages of a value: a list of messages, a message, an object that holds messages, or a text of the given role."""
    if depth <= 0:
        return []
    if isinstance(value, str):
        return _read_text(value, role, depth)
    if isinstance(value, list):
        return _read_list(value, role, depth)
    return _read_object(value, role, depth) if isinstance(value, dict) else []


def _read_text(text: str, role: str, depth: int) -> list[Message]:
    inner = parse_json(text).value
    if inner is not text:
        return read_messages(inner, role, depth - 1)
    return [] if not text or is_repr(text) or text in ELIDED else [Message(role, texts=[text])]


def _read_list(values: list[Any], role: str, depth: int) -> list[Message]:
    """Return the messages of a list. Adjacent blocks form one message, in the role that fits their kind."""
    values = [{"role": value[0], "content": value[1]} if _is_pair(value) else value for value in values]
    if values and all(isinstance(value, list) for value in values):
        # LangChain writes a list of messages for each prompt of a batch.
        return read_messages(values[0], role, depth - 1)
    messages: list[Message] = []
    last: Message | None = None
    for value in values:
        if type(value) is dict and "role" in value:  # the usual case
            messages.append(build_message(value, role, depth))
            last = None
            continue
        if isinstance(value, str) and is_repr(value):
            continue
        item = _decode_object(value)
        if isinstance(item, dict) and not _is_block(item):
            messages += _read_held_messages(item, role, depth - 1)
            last = None
            continue
        message = _build_block_message(item, role, depth)
        if not message.has_content:
            continue
        if last is not None and last.role == message.role:
            _merge_block(last, message)
        else:
            last = message
            messages.append(message)
    return messages


def _build_block_message(item: Any, role: str, depth: int) -> Message:
    """Return a message with a block or a text of a list, in the role that fits its kind."""
    message = Message(role)
    if isinstance(item, dict):
        _add_block(message, item, depth)
    elif isinstance(item, str):
        _add_text(message.texts, item)
    if message.results and not message.texts:
        message.role = "tool"
    elif message.calls or message.thoughts:
        message.role = "assistant"
    return message


def _is_pair(value: Any) -> bool:
    """Return whether a value is a list of a role and a text, which LangChain uses for a message."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(item, str) for item in value)
        and value[0].lower() in ROLES
    )


def _decode_object(value: Any) -> Any:
    """Return the message or block in a JSON text, because a list in an attribute can only hold texts; any other value unchanged."""
    inner = parse_json(value).value if isinstance(value, str) and value.startswith("{") else value
    return inner if isinstance(inner, dict) and (_is_message(inner) or _is_block(inner)) else value


def _is_message(value: Json) -> bool:
    kind = value.get("type")
    if "role" in value or isinstance(value.get("parts"), list):
        return True
    if value.get("tool_calls") or value.get("toolCalls"):
        return True
    if "content" in value:
        names_role = isinstance(kind, str) and kind.lower() in ROLES
        if names_role or value.get("source") in ("user", "assistant"):
            return True
    return _find_wrapped_message(value) is not None


def _find_wrapped_message(value: Json) -> Json | None:
    """Return the message inside a choice of a chat completion, or inside LangChain's form of it."""
    if _WRAPPER_SET.isdisjoint(value):
        return None
    for name in _WRAPPER_MEMBERS:
        if isinstance(inner := value.get(name), dict) and not _MESSAGE_MEMBERS.isdisjoint(inner):
            return inner
    return None


def _is_block(value: Json) -> bool:
    if "role" in value:
        return False
    if _is_typed(value):
        return True
    # The response of a Responses API has members in common with blocks, such as its settings for `reasoning`.
    if "type" in value or "block_type" in value or isinstance(value.get("output"), list):
        return False
    return not _KEY_NAMES.isdisjoint(value) or isinstance(value.get("text"), str) or placeholder_of(value) is not None


def _is_typed(value: Json) -> bool:
    kind = value.get("type", value.get("block_type"))
    return isinstance(kind, str) and (kind in _BLOCK_READERS or placeholder_of(value) is not None)


def _read_held_messages(value: Json, role: str, depth: int) -> list[Message]:
    """Return the object as a message, or the messages that it holds under a known name."""
    if depth <= 0:
        return []
    if _is_message(value):
        return [build_message(value, role, depth)]
    if _ALL_HOLDERS.isdisjoint(value):
        return []
    for name in _ANSWER_HOLDERS if role == "assistant" else _HOLDERS:
        inner = value.get(name)
        if isinstance(inner, list | dict) and (messages := read_messages(inner, role, depth - 1)):
            # The finish reason may be beside the message, as in Gemini's candidates.
            messages[-1].finish = messages[-1].finish or _find_finish_reason(value)
            return messages
    return []


def _find_finish_reason(value: Json) -> str | None:
    if _FINISH_SET.isdisjoint(value):
        return None
    reason = _find_first_string(value, *_FINISH_NAMES)
    info = value.get("generation_info")
    if reason is None and isinstance(info, dict):
        return _find_first_string(info, "finish_reason")
    return reason


def _find_first_string(value: Json, *names: str) -> str | None:
    for name in names:
        if isinstance(member := value.get(name), str) and member:
            return member
    return None


def _add_block(message: Message, block: Json, depth: int) -> None:
    """Add a content block to the message, by its type, else by the key that holds it."""
    kind = block.get("type", block.get("block_type"))
    add = _BLOCK_READERS.get(kind) if isinstance(kind, str) else None
    if add is not None:
        add(message, block)
        return
    if (placeholder := placeholder_of(block)) is not None:
        transcript = _find_first_string(block, "transcript")
        if transcript:
            message.texts.append(transcript)
        else:
            message.media.append(placeholder)
        return
    key = _find_block_key(block) if kind is None else None
    if key is not None:
        _KEY_READERS[key](message, block[key] if isinstance(block[key], dict) else block)
        return
    if isinstance(block.get("text"), str):
        _add_text(message.thoughts if block.get("thought") is True else message.texts, block["text"])
    else:
        for name in (*_PART_MEMBERS, "content"):
            if isinstance(inner := block.get(name), list | dict) or (isinstance(inner, str) and kind is None):
                _add_content(message, inner, depth)
                return


def _find_block_key(block: Json) -> str | None:
    """Return the key that identifies a block without a type. Gemini's library writes null under the keys that a part lacks."""
    if _KEY_NAMES.isdisjoint(block):
        return None
    for key in _KEY_READERS:
        if block.get(key):
            return key
    return None


def _add_text(texts: list[str], value: Any) -> None:
    if isinstance(value, str) and value and value not in ELIDED:
        texts.append(value)


def _add_content(message: Message, content: Any, depth: int) -> None:
    """Add the content of a message: a text, blocks, one block, or JSON text of blocks."""
    if depth <= 0:
        return
    if isinstance(content, str):
        inner = parse_json(content).value
        # Other JSON is a text: a tool may answer in JSON, and a user may paste it.
        if inner is not content and _is_content(inner):
            _add_content(message, inner, depth - 1)
        elif content not in ELIDED:
            _add_text(message.texts, content)
    elif isinstance(content, list):
        for item in content:
            if isinstance(item, dict):
                _add_block(message, item, depth - 1)
            elif isinstance(item, str) and item.startswith("{"):
                _add_content(message, item, depth - 1)
            else:
                _add_text(message.texts, item)
    elif isinstance(content, dict):
        _add_block(message, content, depth - 1)


def _is_content(value: Any) -> bool:
    """Return whether the value of a JSON text is message content: blocks, or a message that wraps them."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, dict) and (_is_block(item) or "role" in item) for item in value)
    return isinstance(value, dict) and ("parts" in value or ("role" in value and "content" in value) or _is_typed(value))


def _merge_block(message: Message, block: Message) -> None:
    message.texts += block.texts
    message.thoughts += block.thoughts
    message.calls += block.calls
    message.results += block.results
    message.media += block.media
    message.compacted = message.compacted or block.compacted


def _read_object(value: Json, role: str, depth: int) -> list[Message]:
    if _is_typed(value) and not _is_message(value):
        return _read_list([value], role, depth)
    if messages := _read_held_messages(value, role, depth):
        return messages
    if text := find_spoken_text(value, role, depth):
        return [Message(role, texts=[text])]
    return _read_list([value], role, depth) if _is_block(value) else []


def find_spoken_text(value: Any, role: str, depth: int = MAX_NESTED) -> str | None:
    """Return the question in the arguments of a function, or the answer in its result; None if no member has it."""
    if not isinstance(value, dict) or depth <= 0:
        return None
    for name in _ANSWERS if role == "assistant" else _QUESTIONS:
        text = value.get(name)
        if isinstance(text, str) and text and not is_repr(text) and text not in ELIDED:
            return text
    for name in _ENVELOPES:
        inner = value.get(name)
        if isinstance(inner, dict) and (text := find_spoken_text(inner, role, depth - 1)):
            return text
    arguments = value.get("args")
    if isinstance(arguments, list) and arguments and isinstance(arguments[0], str) and not is_repr(arguments[0]):
        return arguments[0] or None
    return None


def is_repr(text: str) -> bool:
    """Return whether a text is the repr of a Python object, such as `StopEvent(result=None)` or `<Agent object at 0x7f>`."""
    return _REPR.match(text) is not None and _REPR_END.search(text[-_MAX_REPR_END:]) is not None


def build_message(value: Json, role: str = "user", depth: int = MAX_NESTED) -> Message:
    """Return an object as a message."""
    inner = _find_wrapped_message(value)
    if inner is not None and depth > 0:
        class_path = value.get("id")  # LangChain's, such as ["langchain", "schema", "messages", "AIMessage"]
        kind = class_path[-1] if isinstance(class_path, list) and class_path else value.get("type", role)
        return build_message({"finish_reason": _find_finish_reason(value), **inner, "type": str(kind)}, role, depth - 1)
    message = Message(_read_role(value, role))
    for name in _PART_MEMBERS:
        if name in value:
            _add_content(message, value[name], depth)
    if not message.texts:
        content = next((value[name] for name in _CONTENT_MEMBERS if value.get(name) is not None), None)
        _add_content(message, content, depth)
    if not _THOUGHT_SET.isdisjoint(value):
        for name in _THOUGHT_NAMES:
            _add_text(message.thoughts, value.get(name))
    if calls := value.get("tool_calls") or value.get("toolCalls") or value.get("function_call"):
        _add_calls(message, calls if isinstance(calls, list) else [calls])
    if message.role == "tool" and not message.results:
        message.results.append(_build_result(value, message.text or None))
        message.texts = []
        message.media = []
    message.finish = _find_finish_reason(value)
    return message


def _read_role(value: Json, role: str) -> str:
    name = value.get("role")
    if type(name) is str and (role_name := ROLES.get(name)) is not None:
        return role_name
    kind, source = value.get("type"), value.get("source")  # AutoGen's messages name their source
    if not name:
        if isinstance(kind, str) and kind.lower() in ROLES:
            name = kind
        elif source in ("user", "assistant"):
            name = source
        else:
            name = role
    lower = str(name).lower()
    return ROLES.get(lower, lower)


def _add_calls(message: Message, calls: Iterable[Any]) -> None:
    """Add the calls listed beside the content, except those already among its blocks."""
    block_ids = {call.call_id for call in message.calls if call.call_id is not None}
    for value in calls:
        if isinstance(value, dict):
            call = _build_call(value)
            if call.call_id not in block_ids:
                message.calls.append(call)


def _build_call(value: Json) -> ToolCall:
    function = value.get("function")
    inner = function if isinstance(function, dict) else value
    arguments = parse_json(_find_first_member(inner, "arguments", "args", "input", "tool_kwargs")).value
    return ToolCall(_find_first_string(inner, "name", "toolName", "tool_name"), _find_call_id(value), arguments)


def _find_first_member(value: Json, *names: str) -> Any:
    for name in names:
        if (member := value.get(name)) is not None:
            return member
    return None


def _find_call_id(value: Json) -> str | None:
    return _find_first_string(value, "tool_call_id", "tool_use_id", "toolCallId", "toolUseId", "call_id", "id", "ref")


def _build_result(value: Json, text: str | None) -> ToolResult:
    output = _find_first_member(value, "response", "result", "output", "content")
    origin = value.get("origin")  # Haystack's results name their call
    call = origin if isinstance(origin, dict) else value
    failed = failed_by_result(value)
    if failed is None and isinstance(value.get("error"), bool):
        failed = value["error"]
    if failed is None:
        failed = True if value.get("status") == "error" else failed_by_result(output)
    return ToolResult(
        output=output_text(output if text is None else text),
        name=_find_first_string(call, "name", "toolName", "tool_name"),
        call_id=_find_call_id(call),
        is_error=failed,
    )


def find_tool_result(value: Any) -> ToolResult | None:
    """Return the tool result in a LangChain message or a Gemini function response; None for any other value."""
    if isinstance(value, dict) and isinstance(value.get("response"), dict) and isinstance(value.get("name"), str):
        return _build_result(value, None)
    return next((message.results[0] for message in read_messages(value) if message.results), None)


def output_text(value: Any) -> str:
    """Return the output of a tool as text: the joined texts of content blocks, the value of a JSON string, else JSON."""
    text = decode_json_string(value)
    content = _read_content_blocks(parse_json(text).value)
    if content is not None:
        return content
    if value is None or isinstance(text, str):
        return text or ""
    try:
        return canonical_json(value)
    except ValueError:  # an infinity, which attributes can hold and JSON cannot
        return json_bytes(value).decode()


def _read_content_blocks(value: Any) -> str | None:
    """Return the text of an output that consists of content blocks, perhaps in the envelope of a protocol; None for any other output."""
    if isinstance(value, dict) and set(value) == {"type", "value"}:
        return output_text(value["value"])
    if isinstance(value, dict):
        value = next((value[name] for name in _OUTPUT_BLOCKS if _is_content_list(value.get(name))), None)
    if not _is_content_list(value):
        return None
    return "\n".join(block["text"] if isinstance(block.get("text"), str) else str(placeholder_of(block)) for block in value)


def _is_content_list(value: Any) -> bool:
    """Return whether a value is a list of text blocks or of media blocks."""
    if not isinstance(value, list) or not value:
        return False
    return all(
        isinstance(block, dict) and (isinstance(block.get("text"), str) or placeholder_of(block) is not None) for block in value
    )


def decode_json_string(value: Any) -> Any:
    """Return the text of a JSON string, such as `"stop"` with its quotes; any other value unchanged."""
    if not isinstance(value, str) or not value.startswith('"'):
        return value
    try:
        return msgspec.json.decode(value, type=str)
    except (msgspec.DecodeError, UnicodeError):
        return value


def unflatten(values: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """Return the objects of a list that was flattened into attributes: `PREFIX.0.role`, `PREFIX.0.tool_calls.1.name` and so on."""
    tree: dict[str, Any] = {}
    start = len(prefix) + 1
    for name, value in values.items():
        if not name.startswith(prefix) or name[start - 1 : start] != ".":
            continue
        node = tree
        steps = [step for step in name[start:].split(".", _MAX_STEPS) if step not in _UNWRAPPED]
        for step in steps[:-1]:
            inner = node.setdefault(step, {})
            if not isinstance(inner, dict):
                break
            node = inner
        else:
            if steps:
                node[steps[-1]] = value
    objects = _convert_tree_to_lists(tree)
    return [item for item in objects if isinstance(item, dict)] if isinstance(objects, list) else []


def _convert_tree_to_lists(node: Any) -> Any:
    """Return the tree with lists in place of nodes whose names are numbers."""
    if not isinstance(node, dict):
        return node
    if node and all(name.isdecimal() and len(name) <= _MAX_INDEX_DIGITS for name in node):
        return [_convert_tree_to_lists(node[name]) for name in sorted(node, key=int)]
    return {name: _convert_tree_to_lists(value) for name, value in node.items()}


def failed_by_attributes(attributes: Attributes) -> bool:
    """Return whether the attributes of a tool's span say that the tool failed."""
    if any(_read_flag(attributes.get(name)) for name in FLAGS):
        return True
    return any(str(attributes.get(name, "")).casefold() in _FAILED_STATUSES for name in STATUSES)


def _read_flag(value: Any) -> bool | None:
    """Return a flag, which some senders write as text; None for any other value."""
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        return None
    return {"true": True, "false": False}.get(value.casefold())


def failed_by_result(value: Any, depth: int = _MAX_DEPTH) -> bool | None:
    """Return whether a result, possibly JSON text, says that the tool failed; None if it does not say."""
    result = parse_json(value).value
    if isinstance(result, list):
        return _failed_by_any(result, depth - 1) if depth else None
    return _failed_by_envelope(result, depth) if isinstance(result, dict) else None


def _failed_by_any(results: list[Any], depth: int) -> bool | None:
    verdicts = [failed_by_result(result, depth) for result in results if isinstance(result, dict)]
    if True in verdicts:
        return True
    return False if False in verdicts else None


def _failed_by_envelope(result: Mapping[str, Any], depth: int) -> bool | None:
    if _ENVELOPE_MEMBERS.isdisjoint(result):
        return None
    for name in _FLAG_NAMES:
        flag = _read_flag(result.get(name))
        if flag is not None:
            return flag
    kind = str(result.get("type"))
    is_failed_call = result.get("status") == "error" and (len(result) == 1 or not _STATUS_SIBLINGS.isdisjoint(result))
    is_failed_request = "jsonrpc" in result and isinstance(result.get("error"), dict)
    if is_failed_call or is_failed_request or kind in _FAILED_TYPES or kind.endswith("_tool_result_error"):
        return True
    for name in _RESULT_HOLDERS:
        if depth and isinstance(result.get(name), dict) and result.keys() - _CALL_MEMBERS == {name}:
            return failed_by_result(result[name], depth - 1)
    return None


def _add_text_block(message: Message, block: Json) -> None:
    text = _find_first_member(block, "content", "text", "refusal")
    _add_text(message.thoughts if block.get("thought") is True else message.texts, text)


def _add_thought_block(message: Message, block: Json) -> None:
    summary = _find_first_member(block, "summary", "reasoningText")
    if isinstance(summary, list):
        message.thoughts += [item["text"] for item in summary if isinstance(item, dict) and isinstance(item.get("text"), str)]
        return
    if isinstance(summary, dict):
        block = summary
    _add_text(
        message.thoughts, _find_first_member(block, "content", "thinking", "reasoning", "text", "reasoning_text", "summary")
    )


def _add_call_block(message: Message, block: Json) -> None:
    message.calls.append(_build_call(block))


def _add_result_block(message: Message, block: Json) -> None:
    message.results.append(_build_result(block, None))


def _add_compaction_block(message: Message, _block: Json) -> None:
    message.compacted = True


_NO_MESSAGES = SpanMessages()
_BLOCK_READERS: dict[str, Callable[[Message, Json], None]] = {
    **dict.fromkeys(("text", "input_text", "output_text", "refusal", "text_content"), _add_text_block),
    **dict.fromkeys(("reasoning", "thinking"), _add_thought_block),
    **dict.fromkeys(("tool_call", "tool-call", "tool_use", "toolCall", "function_call", "server_tool_use", "mcp_call"), _add_call_block),
    **dict.fromkeys(
        ("tool_call_response", "tool-result", "tool_result", "tool_return", "function_call_output", "mcp_tool_result"), _add_result_block
    ),
    "compaction": _add_compaction_block,
}  # fmt: skip
"""Function that adds a content block to its message, by the type of the block."""
_KEY_READERS: dict[str, Callable[[Message, Json], None]] = {
    **dict.fromkeys(("function_call", "functionCall", "toolUse", "toolRequest", "tool_call"), _add_call_block),
    **dict.fromkeys(
        ("function_response", "functionResponse", "toolResult", "toolResponse", "tool_call_result"), _add_result_block
    ),
    **dict.fromkeys(("reasoningContent", "reasoning"), _add_thought_block),
}
"""Function that adds a block without a type, by the key that holds it, in Gemini, Bedrock, Genkit and Haystack."""
_KEY_NAMES = frozenset(_KEY_READERS)
