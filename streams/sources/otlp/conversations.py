"""Conversations of spans: what was sent to a model and what came back, wherever an instrumentor puts them.

The spans of a trace repeat each other's messages: an agent those of its requests, a framework those of its provider. A text that takes
long to read is read once in a request of OTLP.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from streams.sources.otlp import conventions as named
from streams.sources.otlp.attributes import parsed
from streams.sources.otlp.messages import Message, message_of, messages_of, unflattened
from streams.sources.otlp.present import Present
from streams.sources.otlp.span_facts import Kind, ToolResult

if TYPE_CHECKING:
    from streams.sources.otlp.request import Event

KEPT_TEXTS, LONGEST_TEXT = 512, 32 * 1024
"""Texts of messages that are remembered within a request, and characters of the longest of them."""
Values = Mapping[str, Any]


class Told(NamedTuple):
    """Messages of one side, and whether a part of them was cut off; of those that were sent, what is kept of them."""

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
        """Tell whether anything is in a message: some write one without parts where they put its content elsewhere."""
        return any(message.has_content for message in self.messages)


_NOTHING = Told()


class ConversationReader:
    """Reads the conversations of the spans of one request."""

    def __init__(self) -> None:
        self._read: dict[tuple[str, str], Told] = {}

    def read(self, values: Values, has: Present, events: Sequence[Event], kind: Kind) -> tuple[Told, Told]:
        """Return the messages that a span tells were sent, and those that came back."""
        sent = self._first(has.sent, values, "user") if has.sent else _NOTHING
        came = self._first(has.came, values, "assistant") if has.came else _NOTHING
        if (has.whole or events) and not (came.has_content and sent.has_content):
            sent, came = self._with_rest(sent, came, values, has, events)
        if came.messages and kind not in ("inference", "log"):
            if sent.question is None:
                # The state that is given back may have the question that was sent as something else than messages.
                sent = sent._replace(question=_sent(came.messages, is_cut=came.is_cut).question)
            came = came._replace(messages=_last_turn(came.messages))
        return sent, came

    def _with_rest(self, sent: Told, came: Told, values: Values, has: Present, events: Sequence[Event]) -> tuple[Told, Told]:
        """Both sides, with what a whole conversation and events tell of the one that is missing."""
        whole = self._first(has.whole, values, "user")
        for questions, answers in (_parted(whole.messages), _messages_of_events(events)):
            if questions and not sent.has_content:
                sent = _sent(questions, is_cut=sent.is_cut)
            if answers and not came.has_content:
                came = Told(answers, came.is_cut)
        return sent._replace(is_cut=sent.is_cut or whole.is_cut), came

    def _first(self, places: Iterable[named.Place], values: Values, role: str) -> Told:
        """The messages at the first place that has any with content, else those of the first that has any."""
        empty = _NOTHING
        for place in places:
            told = self._remembered(place, values, role)
            if told.has_content:
                return told
            empty = empty if empty.messages else told
        return empty

    def _remembered(self, place: named.Place, values: Values, role: str) -> Told:
        text = values.get(place.name) if place.shape == "json" else None
        if not isinstance(text, str) or len(text) > LONGEST_TEXT:
            return _messages_at(place, values, role)
        told = self._read.get((role, text))
        if told is None:
            told = _messages_at(place, values, role)
            if len(self._read) >= KEPT_TEXTS:
                self._read.clear()
            self._read[role, text] = told
        return told


def _messages_at(place: named.Place, values: Values, role: str) -> Told:
    """The messages at a place."""
    value = values.get(place.name)
    if place.shape == "flat":
        return _told([message_of(item, role) for item in unflattened(values, place.name)], role)
    if place.shape == "text":
        return _told([message_of({"role": role, "content": value})] if value else [], role)
    if place.shape == "tasks":
        return _told(_messages_of_task(value), role)
    read = parsed(value)
    return _told(messages_of(read.value, role), role, is_cut=read.is_cut)


def _messages_of_task(value: Any) -> list[Message]:
    """The question that the only task of a crew is. A description with names to fill in is a template, and no question."""
    tasks = parsed(value).value
    if not isinstance(tasks, list) or len(tasks) != 1 or not isinstance(tasks[0], dict):
        return []
    text = tasks[0].get("description")
    return [Message("user", texts=[text])] if isinstance(text, str) and text and "{" not in text else []


def _told(messages: Sequence[Message], role: str, *, is_cut: bool = False) -> Told:
    return _sent(messages, is_cut=is_cut) if role == "user" else Told(messages, is_cut)


def _sent(messages: Sequence[Message], *, is_cut: bool) -> Told:
    """Messages that were sent, with what is kept of them."""
    if not messages:
        return Told(messages, is_cut)
    last = _last_of_model(messages)
    after = messages[last + 1 :]
    return Told(
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
    """The answer that ends what an agent or chain gives back, with the thoughts that led to it: its state may have the whole history."""
    last_question = max((index for index, message in enumerate(came) if message.role == "user" and message.asks), default=-1)
    turn = [message for message in came[last_question + 1 :] if message.role == "assistant"]
    if len(turn) < 2:
        return turn
    return [msgspec.structs.replace(turn[-1], thoughts=[thought for message in turn for thought in message.thoughts])]


def _parted(whole: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    """A conversation as what was sent for its last answer, and that answer."""
    last = _last_of_model(whole)
    return (whole, ()) if last < 0 or last < len(whole) - 1 else (whole[:last], whole[last:])


def _messages_of_events(events: Iterable[Event]) -> tuple[list[Message], list[Message]]:
    """The messages that events tell were sent, and those that came back."""
    sent, came = list[Message](), list[Message]()
    for event in events:
        role = named.MESSAGE_EVENTS.get(event.name)
        if role == "choice":
            came += messages_of_event(event, "assistant")
        elif role is not None:
            sent += messages_of_event(event, role)
    return sent, came


def messages_of_event(event: Event, role: str) -> list[Message]:
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


_FIELDS = frozenset({"role", "content", "parts", "message", "tool_calls"})
"""Fields of a message, or of a choice around one."""
_ENCODED = frozenset({"message", "tool_calls"})
"""Those that are JSON where an attribute cannot hold an object."""
_WHOLE_FIELDS = frozenset({"role", "parts", "finish_reason"})
"""Those by which the content of an event is a message of its own, and no JSON that somebody wrote."""
_TURN = re.compile(r"^(user|assistant|system|tool|developer): ", re.MULTILINE)
