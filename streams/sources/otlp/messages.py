"""The messages of a span: what was sent to a model and what came back, wherever an instrumentor puts them and in whatever shape.

One normaliser reads parts, blocks of content and flat chat completions. It tells the shapes apart by the names of their fields, not by who
wrote them, because frameworks pass on what their providers sent:

1. A value is a text, a list, an object, or JSON of one of these in a text, also twice encoded.
2. An object is a message (it has a role or parts, or wraps what has), holds messages under a known name, is a block of content, or is what
   a function was called with or returned: then the member that holds a question or an answer is the text.
3. A block is told by its `type`, else by the key that holds it (`text`, `function_call`, `toolUse`, `inline_data` …).
4. What Python prints of an object (`ChatMessage(_role=…`) is no message.
5. A tool that catches its exception reports the failure in its result, and the status of its span stays unset. Only the envelope of a result
   counts: a result whose content talks of errors, or has an `error` that is null, is a success.

The spans of a trace repeat each other's messages: an agent those of its requests, a framework those of its provider. A long text is read
once per request of OTLP.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from audit.fingerprints import canonical_json
from audit.surrogates import json_bytes
from streams.sources.media import joined, placeholder_of
from streams.sources.otlp import conventions as named
from streams.sources.otlp.attributes import parsed
from streams.sources.otlp.kinds import Present
from streams.sources.otlp.span_facts import Kind, ToolCall, ToolResult

if TYPE_CHECKING:
    from streams.sources.otlp.request import Event


KEPT_TEXTS, LONGEST_TEXT = 512, 32 * 1024
"""Texts of messages that are remembered within a request, and characters of the longest of them."""
Values = Mapping[str, Any]
_FIELDS = frozenset({"role", "content", "parts", "message", "tool_calls"})
"""Fields of a message, or of a choice around one."""
_ENCODED = frozenset({"message", "tool_calls"})
"""Those that are JSON where an attribute cannot hold an object."""
_WHOLE_FIELDS = frozenset({"role", "parts", "finish_reason"})
"""Those by which the content of an event is a message of its own, and no JSON that somebody wrote."""
_TURN = re.compile(r"^(user|assistant|system|tool|developer): ", re.MULTILINE)
Json = Mapping[str, Any]
MAX_NESTED = 8
"""Levels of values that hold messages, of content within content, and of envelopes: what lies deeper is not looked at."""
ROLES = {
    "human": "user", "ai": "assistant", "model": "assistant", "function": "tool", "tool_response": "tool", "developer": "system",
    "humanmessage": "user", "aimessage": "assistant", "toolmessage": "tool", "systemmessage": "system", "bot": "assistant",
    "humanmessagechunk": "user", "aimessagechunk": "assistant", "system": "system", "tool": "tool", "user": "user", "assistant": "assistant",
}  # fmt: skip
"""The roles by all the names they have somewhere."""
ELIDED = frozenset({"<elided>", "<not specified>", "<not serializable>", "redacted-by-litellm"})
"""What Google's ADK and LiteLLM write instead of a value that they keep back."""
_UNWRAPPED = frozenset({"message", "message_content", "tool_call"})
"""Steps of OpenInference's flat names that only say what follows."""
_DIGITS = 6
"""Digits of the longest number that is a place in a list."""
_STEPS = 32
"""Steps of a flat name that are distinguished: a sender can write thousands into one."""
_REPR = re.compile(
    r"[\[(]{0,2}[A-Z]\w{0,127}\((?:\s{0,64}\w{1,64}=|\))"  # ChatMessage(_role=…
    r"|\{'\w{1,64}': \[?[A-Z]\w{0,127}\(\w{1,64}="  # {'messages': [ChatMessage(_role=…
    r"|<[\w.]{1,256} object at 0x"  # <crewai.agent.Agent object at 0x7f…
    r"|\w{1,64}=(?:['\"\[{]|None\b|[A-Z]\w{0,127}\().{0,4096}? \w{1,64}=(?:['\"\[{]|None\b|True\b|False\b|[A-Z]\w{0,127}\()",
    re.DOTALL,
)
"""How Python prints an object: its class with named fields, its address, or, of Pydantic's models, two fields or more."""
_REPR_END = re.compile(r"(?:[)\]>}'\"\d…]|\.\.\.|None|True|False)\s*\Z")
_LONGEST_END = 16
_HOLDERS = (
    "messages", "inputs", "new_message", "contents", "items", "history", "input", "prompt", "message", "content", "output", "choices", "candidates",
    "generations", "response", "chat_message", "replies", "outputs",
)  # fmt: skip
"""Members that hold messages, in the order in which they are looked at for those that were sent."""
_ANSWER_HOLDERS = (
    "outputs", "choices", "candidates", "generations", "output", "message", "chat_message", "content", "replies", "messages", "last_message",
    "response", "items", "input", "prompt",
)  # fmt: skip
"""The same for what came back."""
_QUESTIONS = (
    "task", "question", "query", "user_msg", "user_message", "user_input", "user_query", "user_prompt", "prompt", "input", "message",
    "messages", "text", "content", "value",
)  # fmt: skip
"""Members of what an agent or chain was called with that are the question, where they are texts."""
_ANSWERS = (
    "answer", "final_answer", "response", "output", "final_output", "result", "completion", "reply", "text", "content", "message", "raw", "value",
)  # fmt: skip
"""Members of what it gave back that are the answer."""
_HOLDING = frozenset((*_HOLDERS, *_ANSWER_HOLDERS))
_ENVELOPES = ("input_args", "inputs", "kwargs")
"""Members that hold the arguments of a function."""
_WRAPPERS = ("kwargs", "data", "message")
_WRAPPING = frozenset(_WRAPPERS)
_SAYING = frozenset({"role", "content", "parts", "tool_calls", "toolCalls", "function_call"})
"""Members of a message, by which it is known inside another object."""
_PARTS = ("parts", "contents", "blocks")
_CONTENTS = ("content", "message", "text")
_THOUGHT_NAMES = ("thinking", "reasoning", "reasoning_content")
_THOUGHTS = frozenset(_THOUGHT_NAMES)
_FINISH_NAMES = ("finish_reason", "stop_reason", "finishReason")
_FINISHES = frozenset({*_FINISH_NAMES, "generation_info"})
_OUTPUT_BLOCKS = ("content", "blocks")
"""Members of a tool's output that hold its blocks: of MCP's and of LlamaIndex's."""
FLAGS = ("gen_ai.tool.is_error", "tool.is_error", "mcp.tool.is_error", "lk.function_tool.is_error", "is_error")
"""Attributes of a tool's span that are true where it failed."""
STATUSES = ("gen_ai.tool.status", "gen_ai.tool.call.status", "tool.status", "mcp.tool.status")
"""Attributes of a tool's span that say how it ended."""
_FAILED = frozenset({"error", "failed", "failure", "timeout"})
_FLAG_NAMES = ("isError", "is_error")
_FAILED_TYPES = frozenset({"error-text", "error-json", "tool-error", "tool_error", "tool_result_error"})
"""Types of results of Vercel's AI SDK and of Anthropic's server tools that are failures."""
_AROUND_STATUS = frozenset({"content", "message", "error", "toolUseId", "tool_use_id", "tool_call_id", "toolCallId"})
"""Members beside a `status` by which it is that of the call: a ticket has a status, too."""
_RESULT_HOLDERS = ("result", "output", "response", "kwargs")
_ABOUT = frozenset(
    {"jsonrpc", "id", "lc", "type", "name", "toolName", "toolCallId", "tool_call_id", "tool_use_id", "toolUseId", "call_id"}
)
"""Members of an envelope that only say which call it answers."""
_TELLING = frozenset({*_FLAG_NAMES, *_RESULT_HOLDERS, "type", "status", "jsonrpc"})
"""Members without one of which a result is no envelope."""
_MAX_DEPTH = 4


class Side(NamedTuple):
    """Messages of one side of a span: sent, or returned. `is_cut` says that a part of them was lost; the other fields are of sent messages."""

    messages: Sequence[Message] = ()
    is_cut: bool = False
    question: str | None = None
    """The user's last message: its text, or what stands for what it shows."""
    results: tuple[ToolResult, ...] = ()
    """The outputs of tools after the last message of the model: those before were sent with an earlier request already."""
    thoughts: tuple[str, ...] = ()
    """Those of the answer before, which some send back with the outputs of tools and tell nowhere else."""
    compacted: bool = False

    @property
    def has_content(self) -> bool:
        """Tell whether any message has content: some senders write one without parts and put its content elsewhere."""
        return any(message.has_content for message in self.messages)


class ConversationReader:
    """Reads the conversations of the spans of one request."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, str], Side] = {}

    def read(self, values: Values, has: Present, events: Sequence[Event], kind: Kind) -> tuple[Side, Side]:
        """Return the messages that were sent in a span, and those that came back."""
        sent = self._read_first(has.sent, values, "user") if has.sent else _NOTHING
        came = self._read_first(has.came, values, "assistant") if has.came else _NOTHING
        if (has.whole or events) and not (came.has_content and sent.has_content):
            sent, came = self._with_rest(sent, came, values, has, events)
        if came.messages and kind not in ("inference", "log"):
            if sent.question is None:
                # The state that is given back may have the question that was sent as something else than messages.
                sent = sent._replace(question=_sent(came.messages, is_cut=came.is_cut).question)
            came = came._replace(messages=_last_turn(came.messages))
        return sent, came

    def _with_rest(self, sent: Side, came: Side, values: Values, has: Present, events: Sequence[Event]) -> tuple[Side, Side]:
        """Both sides; a missing one is taken from a whole conversation or from events."""
        whole = self._read_first(has.whole, values, "user")
        for questions, answers in (_parted(whole.messages), _messages_of_events(events)):
            if questions and not sent.has_content:
                sent = _sent(questions, is_cut=sent.is_cut)
            if answers and not came.has_content:
                came = Side(answers, came.is_cut)
        return sent._replace(is_cut=sent.is_cut or whole.is_cut), came

    def _read_first(self, places: Iterable[named.Place], values: Values, role: str) -> Side:
        """The messages at the first place that has any with content, else those of the first that has any."""
        empty = _NOTHING
        for source in places:
            side = self._read_cached(source, values, role)
            if side.has_content:
                return side
            empty = empty if empty.messages else side
        return empty

    def _read_cached(self, source: named.Place, values: Values, role: str) -> Side:
        text = values.get(source.name) if source.shape == "json" else None
        if not isinstance(text, str) or len(text) > LONGEST_TEXT:
            return _messages_at(source, values, role)
        side = self._read.get((role, text))
        if side is None:
            side = _messages_at(source, values, role)
            if len(self._read) >= KEPT_TEXTS:
                self._read.clear()
            self._read[role, text] = side
        return side


def _sent(messages: Sequence[Message], *, is_cut: bool) -> Side:
    """The side of messages that were sent, with the fields that are kept of it."""
    if not messages:
        return Side(messages, is_cut)
    last = _last_of_model(messages)
    after = messages[last + 1 :]
    return Side(
        messages,
        is_cut,
        question=next((message.text for message in reversed(messages) if message.role == "user" and message.asks), None),
        results=tuple([result for message in after for result in message.results]),
        thoughts=_thoughts_before(messages, last) if last >= 0 and all(message.results for message in after) else (),
        compacted=any(message.compacted for message in messages),
    )


def _last_of_model(messages: Sequence[Message]) -> int:
    """The index of the last message of the model; -1 where there is none."""
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].role == "assistant":
            return index
    return -1


def _thoughts_before(messages: Sequence[Message], last: int) -> tuple[str, ...]:
    """The thoughts of the model's messages up to this one, without anything between them."""
    first = last
    while first and messages[first - 1].role == "assistant":
        first -= 1
    return tuple([thought for message in messages[first : last + 1] for thought in message.thoughts])


def _last_turn(came: Sequence[Message]) -> Sequence[Message]:
    """The answer at the end of an agent's or chain's output, with the thoughts that led to it: the output may have the whole history."""
    last_question = max((index for index, message in enumerate(came) if message.role == "user" and message.asks), default=-1)
    turn = [message for message in came[last_question + 1 :] if message.role == "assistant"]
    if len(turn) < 2:
        return turn
    return [msgspec.structs.replace(turn[-1], thoughts=[thought for message in turn for thought in message.thoughts])]


def _parted(whole: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    """A conversation split into the messages before its last answer, and that answer."""
    last = _last_of_model(whole)
    return (whole, ()) if last < 0 or last < len(whole) - 1 else (whole[:last], whole[last:])


def _messages_of_events(events: Iterable[Event]) -> tuple[list[Message], list[Message]]:
    """The messages in events: those that were sent, and those that came back."""
    sent, came = list[Message](), list[Message]()
    for event in events:
        role = named.MESSAGE_EVENTS.get(event.name)
        if role == "choice":
            came += _read_event(event, "assistant")
        elif role is not None:
            sent += _read_event(event, role)
    return sent, came


def _read_event(event: Event, role: str) -> list[Message]:
    """The messages of an event: of its fields, of one attribute that has them all, or of a text of JSON that is its whole body."""
    attributes = event.attributes
    if "role" not in attributes:
        content = next((attributes[name] for name in named.EVENT_CONTENT if attributes.get(name) is not None), None)
        whole = parsed(attributes.get("content") if content is None else content).value
        if isinstance(whole, dict) and not (_FIELDS if content is not None else _WHOLE_FIELDS).isdisjoint(whole):
            return [message_of({"role": role, **whole}, role)]
        if content is not None:
            return (_turns_in(whole) if isinstance(whole, str) else []) or messages_of(whole, role)
    fields = {name: parsed(value).value if name in _ENCODED else value for name, value in attributes.items()}
    if isinstance(fields.get("message"), dict) and "content" not in fields:
        return [message_of({"role": role, "finish_reason": fields.get("finish_reason"), **fields["message"]}, role)]
    return [message_of({"role": role, **fields}, role)]


def _turns_in(text: str) -> list[Message]:
    """The messages in a text that has a line for each, such as OpenLIT writes: `user: Is it open?`."""
    starts = list(_TURN.finditer(text))
    if not starts or starts[0].start():
        return []
    ends = [*(start.start() for start in starts[1:]), len(text)]
    turns = zip(starts, ends, strict=True)
    return [message_of({"role": start[1], "content": text[start.end() : end].strip()}) for start, end in turns]


def _messages_at(source: named.Place, values: Values, role: str) -> Side:
    """The messages at a place."""
    value = values.get(source.name)
    if source.shape == "flat":
        return _build_side([message_of(item, role) for item in unflattened(values, source.name)], role)
    if source.shape == "text":
        return _build_side([message_of({"role": role, "content": value})] if value else [], role)
    if source.shape == "tasks":
        return _build_side(_messages_of_task(value), role)
    read = parsed(value)
    return _build_side(messages_of(read.value, role), role, is_cut=read.is_cut)


def _build_side(messages: Sequence[Message], role: str, *, is_cut: bool = False) -> Side:
    return _sent(messages, is_cut=is_cut) if role == "user" else Side(messages, is_cut)


def _messages_of_task(value: Any) -> list[Message]:
    """The question in the only task of a crew. A description with names to fill in is a template, and no question."""
    tasks = parsed(value).value
    if not isinstance(tasks, list) or len(tasks) != 1 or not isinstance(tasks[0], dict):
        return []
    text = tasks[0].get("description")
    return [Message("user", texts=[text])] if isinstance(text, str) and text and "{" not in text else []


def is_elided(value: Any) -> bool:
    """Tell whether the sender withheld a value, or everything in an object."""
    parts = value.values() if isinstance(value, dict) else (value,)
    return bool(parts) and all(isinstance(part, str) and part in ELIDED for part in parts)


class Message(msgspec.Struct):
    """One message: its texts, media, thoughts, calls and results. `media` are placeholders for content that is no text."""

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
        """Its texts, joined by line ends; without any, the placeholders of what it shows."""
        return "\n".join(self.texts) or joined(self.media)

    @property
    def asks(self) -> bool:
        """Tell whether a message in the user's role is a turn of the user, and no mere carrier of tools' outputs."""
        return bool(self.texts) or (bool(self.media) and not self.results)

    @property
    def has_content(self) -> bool:
        """Tell whether anything is in it."""
        return bool(self.texts or self.calls or self.results or self.thoughts or self.media or self.compacted)


def messages_of(value: Any, role: str = "user", depth: int = MAX_NESTED) -> list[Message]:
    """The messages of a value: a list of them, one of them, an object that holds them, or a text of the given role."""
    if depth <= 0:
        return []
    if isinstance(value, str):
        return _messages_in_text(value, role, depth)
    if isinstance(value, list):
        return _messages_in_list(value, role, depth)
    return _messages_in_object(value, role, depth) if isinstance(value, dict) else []


def _messages_in_text(text: str, role: str, depth: int) -> list[Message]:
    inner = parsed(text).value
    if inner is not text:
        return messages_of(inner, role, depth - 1)
    return [] if not text or is_repr(text) or text in ELIDED else [Message(role, texts=[text])]


def _messages_in_list(values: list[Any], role: str, depth: int) -> list[Message]:
    """The messages of a list. Blocks that stand beside each other are one message, in the role that their kind has."""
    values = [{"role": value[0], "content": value[1]} if _is_pair(value) else value for value in values]
    if values and all(isinstance(value, list) for value in values):
        # LangChain has a list of messages for each prompt of a batch.
        return messages_of(values[0], role, depth - 1)
    messages = list[Message]()
    last: Message | None = None
    for value in values:
        if type(value) is dict and "role" in value:  # as most
            messages.append(message_of(value, role, depth))
            last = None
            continue
        if isinstance(value, str) and is_repr(value):
            continue
        item = _object_in(value)
        if isinstance(item, dict) and not _is_block(item):
            messages += _held_messages(item, role, depth - 1)
            last = None
            continue
        block = Message(role)
        if isinstance(item, dict):
            _add_block(block, item, depth)
        elif isinstance(item, str):
            _add_text(block.texts, item)
        if block.results and not block.texts:
            block.role = "tool"
        elif block.calls or block.thoughts:
            block.role = "assistant"
        if not block.has_content:
            continue
        if last is None or last.role != block.role:
            last = block
            messages.append(last)
        else:
            _extend(last, block)
    return messages


def _is_pair(value: Any) -> bool:
    """Tell whether a value is a pair of a role and a text, which is a message to LangChain."""
    return (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(item, str) for item in value)
        and value[0].lower() in ROLES
    )


def _object_in(value: Any) -> Any:
    """The message in a text of JSON, as an attribute's list of texts has it; any other value as it is."""
    inner = parsed(value).value if isinstance(value, str) and value.startswith("{") else value
    return inner if isinstance(inner, dict) and (_is_message(inner) or _is_block(inner)) else value


def _is_message(value: Json) -> bool:
    kind = value.get("type")
    return (
        "role" in value
        or isinstance(value.get("parts"), list)
        or bool(value.get("tool_calls") or value.get("toolCalls"))
        or (isinstance(kind, str) and kind.lower() in ROLES and "content" in value)
        or ("content" in value and value.get("source") in ("user", "assistant"))
        or _wrapped(value) is not None
    )


def _wrapped(value: Json) -> Json | None:
    """The message inside a choice of a chat completion, or inside LangChain's form of one."""
    if _WRAPPING.isdisjoint(value):
        return None
    for name in _WRAPPERS:
        if isinstance(inner := value.get(name), dict) and not _SAYING.isdisjoint(inner):
            return inner
    return None


def _is_block(value: Json) -> bool:
    if "role" in value:
        return False
    if _is_typed(value):
        return True
    # The whole answer of a Responses API has members that blocks have, too, such as its settings for `reasoning`.
    if "type" in value or "block_type" in value or isinstance(value.get("output"), list):
        return False
    return not _KEY_NAMES.isdisjoint(value) or isinstance(value.get("text"), str) or placeholder_of(value) is not None


def _is_typed(value: Json) -> bool:
    kind = value.get("type", value.get("block_type"))
    return isinstance(kind, str) and (kind in _BLOCKS or placeholder_of(value) is not None)


def _held_messages(value: Json, role: str, depth: int) -> list[Message]:
    """The message that an object is, or the messages that it holds under a known name."""
    if depth <= 0:
        return []
    if _is_message(value):
        return [message_of(value, role, depth)]
    if _HOLDING.isdisjoint(value):
        return []
    for name in _ANSWER_HOLDERS if role == "assistant" else _HOLDERS:
        inner = value.get(name)
        if isinstance(inner, list | dict) and (messages := messages_of(inner, role, depth - 1)):
            # The reason to stop may stand beside the message, as in Gemini's candidates.
            messages[-1].finish = messages[-1].finish or _finish(value)
            return messages
    return []


def _finish(value: Json) -> str | None:
    if _FINISHES.isdisjoint(value):
        return None
    about = value.get("generation_info")
    beside = _named(about, "finish_reason") if isinstance(about, dict) else None
    return _named(value, *_FINISH_NAMES) or beside


def _named(value: Json, *names: str) -> str | None:
    for name in names:
        if isinstance(member := value.get(name), str) and member:
            return member
    return None


def _add_block(message: Message, block: Json, depth: int) -> None:
    """Add a block of content: by its type, else by the key that holds it."""
    kind = block.get("type", block.get("block_type"))
    add = _BLOCKS.get(kind) if isinstance(kind, str) else None
    if add is not None:
        add(message, block)
        return
    if (placeholder := placeholder_of(block)) is not None:
        # A voice's transcript is what was said.
        message.texts.append(block["transcript"]) if _named(block, "transcript") else message.media.append(placeholder)
        return
    # Gemini's library writes the keys that a part has not as null.
    name = None if kind is not None or _KEY_NAMES.isdisjoint(block) else next((key for key in _KEYS if block.get(key)), None)
    if name is not None:
        _KEYS[name](message, block[name] if isinstance(block[name], dict) else block)
        return
    if isinstance(block.get("text"), str):
        _add_text(message.thoughts if block.get("thought") is True else message.texts, block["text"])
    else:
        for name in (*_PARTS, "content"):
            if isinstance(inner := block.get(name), list | dict) or (isinstance(inner, str) and kind is None):
                _add_content(message, inner, depth)
                return


def _add_text(texts: list[str], value: Any) -> None:
    if isinstance(value, str) and value and value not in ELIDED:
        texts.append(value)


def _add_content(message: Message, content: Any, depth: int) -> None:
    """Add what a message has as its content: a text, blocks, one block, or JSON of blocks in a text."""
    if depth <= 0:
        return
    if isinstance(content, str):
        inner = parsed(content).value
        # Any other JSON is a text: a tool may answer in it, and a user may paste it.
        if inner is not content and _is_content(inner):
            _add_content(message, inner, depth - 1)
        elif content not in ELIDED:
            _add_text(message.texts, content)
    elif isinstance(content, list):
        for item in content:
            if isinstance(item, dict):
                _add_block(message, item, depth - 1)
            elif isinstance(item, str):
                _add_content(message, item, depth - 1) if item.startswith("{") else _add_text(message.texts, item)
    elif isinstance(content, dict):
        _add_block(message, content, depth - 1)


def _is_content(value: Any) -> bool:
    """Tell whether the value of a text of JSON is the content of a message: blocks, or a message around them."""
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, dict) and (_is_block(item) or "role" in item) for item in value)
    return isinstance(value, dict) and ("parts" in value or ("role" in value and "content" in value) or _is_typed(value))


def _extend(message: Message, block: Message) -> None:
    message.texts += block.texts
    message.thoughts += block.thoughts
    message.calls += block.calls
    message.results += block.results
    message.media += block.media
    message.compacted = message.compacted or block.compacted


def _messages_in_object(value: Json, role: str, depth: int) -> list[Message]:
    if _is_typed(value) and not _is_message(value):
        return _messages_in_list([value], role, depth)
    if messages := _held_messages(value, role, depth):
        return messages
    if text := spoken_in(value, role, depth):
        return [Message(role, texts=[text])]
    return _messages_in_list([value], role, depth) if _is_block(value) else []


def spoken_in(value: Any, role: str, depth: int = MAX_NESTED) -> str | None:
    """The question or answer in the arguments or the result of a function; None where no member has it."""
    if not isinstance(value, dict) or depth <= 0:
        return None
    for name in _ANSWERS if role == "assistant" else _QUESTIONS:
        text = value.get(name)
        if isinstance(text, str) and text and not is_repr(text) and text not in ELIDED:
            return text
    for name in _ENVELOPES:
        inner = value.get(name)
        if isinstance(inner, dict) and (text := spoken_in(inner, role, depth - 1)):
            return text
    arguments = value.get("args")
    if isinstance(arguments, list) and arguments and isinstance(arguments[0], str) and not is_repr(arguments[0]):
        return arguments[0] or None
    return None


def is_repr(text: str) -> bool:
    """Tell whether a text is what Python prints of an object, such as `StopEvent(result=None)` or `<Agent object at 0x7f>`."""
    return _REPR.match(text) is not None and _REPR_END.search(text[-_LONGEST_END:]) is not None


def message_of(value: Json, role: str = "user", depth: int = MAX_NESTED) -> Message:
    """The message that an object is."""
    inner = _wrapped(value)
    if inner is not None and depth > 0:
        named = value["id"][-1] if isinstance(value.get("id"), list) and value["id"] else value.get("type", role)
        return message_of({"finish_reason": _finish(value), **inner, "type": str(named)}, role, depth - 1)
    message = Message(_role(value, role))
    for name in _PARTS:
        if name in value:
            _add_content(message, value[name], depth)
    if not message.texts:
        content = next((value[name] for name in _CONTENTS if value.get(name) is not None), None)
        _add_content(message, content, depth)
    if not _THOUGHTS.isdisjoint(value):
        for name in _THOUGHT_NAMES:
            _add_text(message.thoughts, value.get(name))
    if calls := value.get("tool_calls") or value.get("toolCalls") or value.get("function_call"):
        _add_calls(message, calls if isinstance(calls, list) else [calls])
    if message.role == "tool" and not message.results:
        message.results.append(_result(value, message.text or None))
        message.texts, message.media = [], []
    message.finish = _finish(value)
    return message


def _role(value: Json, role: str) -> str:
    name = value.get("role")
    if type(name) is str and (usual := ROLES.get(name)) is not None:
        return usual
    kind, source = value.get("type"), value.get("source")  # AutoGen's messages name their source
    name = (
        name
        or (kind if isinstance(kind, str) and kind.lower() in ROLES else None)
        or (source if source in ("user", "assistant") else None)
        or role
    )
    lower = str(name).lower()
    return ROLES.get(lower, lower)


def _add_calls(message: Message, calls: Iterable[Any]) -> None:
    """Add the calls that stand beside the content and are not among its blocks."""
    ids = {call.call_id for call in message.calls} - {None}
    beside = [_call(call) for call in calls if isinstance(call, dict)]
    message.calls += [call for call in beside if call.call_id not in ids]


def _call(value: Json) -> ToolCall:
    function = value.get("function")
    inner = function if isinstance(function, dict) else value
    arguments = parsed(_first(inner, "arguments", "args", "input", "tool_kwargs")).value
    return ToolCall(_named(inner, "name", "toolName", "tool_name"), _id(value), arguments)


def _first(value: Json, *names: str) -> Any:
    for name in names:
        if (member := value.get(name)) is not None:
            return member
    return None


def _id(value: Json) -> str | None:
    return _named(value, "tool_call_id", "tool_use_id", "toolCallId", "toolUseId", "call_id", "id", "ref")


def _result(value: Json, text: str | None) -> ToolResult:
    output = _first(value, "response", "result", "output", "content")
    origin = value.get("origin")  # Haystack's results name their call
    about = origin if isinstance(origin, dict) else value
    failed = failed_by_result(value)
    if failed is None and isinstance(value.get("error"), bool):
        failed = value["error"]
    if failed is None:
        failed = True if value.get("status") == "error" else failed_by_result(output)
    return ToolResult(
        text_of(text if text is not None else output), _named(about, "name", "toolName", "tool_name"), _id(about), failed
    )


def result_of(value: Any) -> ToolResult | None:
    """The output of a tool in a message of its own, with the id of its call: LangChain's, or Gemini's function response."""
    if isinstance(value, dict) and isinstance(value.get("response"), dict) and isinstance(value.get("name"), str):
        return _result(value, None)
    return next((message.results[0] for message in messages_of(value) if message.results), None)


def text_of(value: Any) -> str:
    """The text of a tool's output: of content its texts, of anything else its JSON. A text of JSON that is one text loses its quotes."""
    text = unquoted(value)
    content = _output_content(parsed(text).value)
    if content is not None:
        return content
    if value is None or isinstance(text, str):
        return text or ""
    try:
        return canonical_json(value)
    except ValueError:  # an infinity, which attributes can hold and JSON cannot
        return json_bytes(value).decode()


def _output_content(value: Any) -> str | None:
    """The text of an output that is content, or has it inside the envelope of its protocol; None for any other."""
    if isinstance(value, dict) and set(value) == {"type", "value"}:
        return text_of(value["value"])
    if isinstance(value, dict):
        value = next((value[name] for name in _OUTPUT_BLOCKS if _is_output(value.get(name))), None)
    if not _is_output(value):
        return None
    return "\n".join(block["text"] if isinstance(block.get("text"), str) else str(placeholder_of(block)) for block in value)


def _is_output(value: Any) -> bool:
    """Tell whether a value is a list of blocks of text, or of what placeholders stand for."""
    return (
        isinstance(value, list)
        and bool(value)
        and all(
            isinstance(block, dict) and (isinstance(block.get("text"), str) or placeholder_of(block) is not None)
            for block in value
        )
    )


def unquoted(value: Any) -> Any:
    """The text in a text of JSON, such as `"stop"` with its quotes; any other value as it is."""
    if not isinstance(value, str) or not value.startswith('"'):
        return value
    try:
        return msgspec.json.decode(value, type=str)
    except (msgspec.DecodeError, UnicodeError):
        return value


def unflattened(values: Mapping[str, Any], prefix: str) -> list[dict[str, Any]]:
    """The objects of a list that was written flat: `PREFIX.0.role`, `PREFIX.0.tool_calls.1.name` and so on, in order."""
    tree: dict[str, Any] = {}
    start = len(prefix) + 1
    for name, value in values.items():
        if not name.startswith(prefix) or name[start - 1 : start] != ".":
            continue
        node, steps = tree, [step for step in name[start:].split(".", _STEPS) if step not in _UNWRAPPED]
        for step in steps[:-1]:
            inner = node.setdefault(step, {})
            if not isinstance(inner, dict):
                break
            node = inner
        else:
            if steps:
                node[steps[-1]] = value
    objects = _lists(tree)
    return [item for item in objects if isinstance(item, dict)] if isinstance(objects, list) else []


def _lists(node: Any) -> Any:
    """The tree with a list for each node whose names are numbers."""
    if not isinstance(node, dict):
        return node
    if node and all(name.isdecimal() and len(name) <= _DIGITS for name in node):
        return [_lists(node[name]) for name in sorted(node, key=int)]
    return {name: _lists(value) for name, value in node.items()}


def failed_by_attributes(values: Mapping[str, Any]) -> bool:
    """Tell whether the attributes of a tool's span say that it failed."""
    return any(_flag(values.get(name)) for name in FLAGS) or any(
        str(values.get(name, "")).casefold() in _FAILED for name in STATUSES
    )


def _flag(value: Any) -> bool | None:
    """A flag; some senders write it as a text."""
    if isinstance(value, bool):
        return value
    return {"true": True, "false": False}.get(value.casefold()) if isinstance(value, str) else None


def failed_by_result(value: Any, depth: int = _MAX_DEPTH) -> bool | None:
    """Tell whether a result, or a text of JSON that it is, says that the tool failed; None where it does not say."""
    result = parsed(value).value
    if isinstance(result, list):
        verdicts = [failed_by_result(item, depth - 1) for item in result if isinstance(item, dict)] if depth else []
        return True if True in verdicts else False if False in verdicts else None
    return _failed_by_envelope(result, depth) if isinstance(result, dict) else None


def _failed_by_envelope(result: Mapping[str, Any], depth: int) -> bool | None:
    if _TELLING.isdisjoint(result):
        return None
    flag = next((flag for name in _FLAG_NAMES if (flag := _flag(result.get(name))) is not None), None)
    if flag is not None:
        return flag
    kind = str(result.get("type"))
    is_failed_call = result.get("status") == "error" and (len(result) == 1 or not _AROUND_STATUS.isdisjoint(result))
    is_failed_request = "jsonrpc" in result and isinstance(result.get("error"), dict)
    if is_failed_call or is_failed_request or kind in _FAILED_TYPES or kind.endswith("_tool_result_error"):
        return True
    for name in _RESULT_HOLDERS:
        if depth and isinstance(result.get(name), dict) and result.keys() - _ABOUT == {name}:
            return failed_by_result(result[name], depth - 1)
    return None


def _text_block(message: Message, block: Json) -> None:
    text = _first(block, "content", "text", "refusal")
    _add_text(message.thoughts if block.get("thought") is True else message.texts, text)


def _thought_block(message: Message, block: Json) -> None:
    summary = _first(block, "summary", "reasoningText")
    if isinstance(summary, list):
        message.thoughts += [item["text"] for item in summary if isinstance(item, dict) and isinstance(item.get("text"), str)]
        return
    if isinstance(summary, dict):
        block = summary
    _add_text(message.thoughts, _first(block, "content", "thinking", "reasoning", "text", "reasoning_text", "summary"))


def _call_block(message: Message, block: Json) -> None:
    message.calls.append(_call(block))


def _result_block(message: Message, block: Json) -> None:
    message.results.append(_result(block, None))


def _compaction_block(message: Message, _block: Json) -> None:
    message.compacted = True


_NOTHING = Side()
_BLOCKS: dict[str, Callable[[Message, Json], None]] = {
    **dict.fromkeys(("text", "input_text", "output_text", "refusal", "text_content"), _text_block),
    **dict.fromkeys(("reasoning", "thinking"), _thought_block),
    **dict.fromkeys(("tool_call", "tool-call", "tool_use", "toolCall", "function_call", "server_tool_use", "mcp_call"), _call_block),
    **dict.fromkeys(
        ("tool_call_response", "tool-result", "tool_result", "tool_return", "function_call_output", "mcp_tool_result"), _result_block
    ),
    "compaction": _compaction_block,
}  # fmt: skip
"""What a block of content adds to its message, by its type."""
_KEYS: dict[str, Callable[[Message, Json], None]] = {
    **dict.fromkeys(("function_call", "functionCall", "toolUse", "toolRequest", "tool_call"), _call_block),
    **dict.fromkeys(("function_response", "functionResponse", "toolResult", "toolResponse", "tool_call_result"), _result_block),
    **dict.fromkeys(("reasoningContent", "reasoning"), _thought_block),
}
"""What a block without a type adds, by the key that holds it: of Gemini, Bedrock, Genkit and Haystack."""
_KEY_NAMES = frozenset(_KEYS)
