"""Conversations of spans: what was sent to a model and what came back, wherever an instrumentor puts them.

The spans of a trace repeat each other's messages: an agent those of its requests, a framework those of its provider. A text that takes
long to read is read once in a request of OTLP.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from streams.sources.otlp import conventions as named
from streams.sources.otlp.attributes import parsed
from streams.sources.otlp.messages import Message, message_of, messages_of, unflattened
from streams.sources.otlp.part_messages import messages_of_parts
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
    """The last message of a user that has any text."""
    results: tuple[ToolResult, ...] = ()
    """The outputs of tools after the last message of the model: those before were sent with an earlier request already."""
    thoughts: tuple[str, ...] = ()
    """Those of the answer before, which some send back with the outputs of tools and tell nowhere else."""
    compacted: bool = False


_NOTHING = Told()


class ConversationReader:
    """Reads the conversations of the spans of one request."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], Told] = {}

    def read(self, values: Values, has: Present, events: Sequence[Event], kind: Kind) -> tuple[Told, Told]:
        """Return the messages that a span tells were sent, and those that came back."""
        sent = self._first(has.sent, values, "user") if has.sent else _NOTHING
        came = self._first(has.came, values, "assistant") if has.came else _NOTHING
        if (has.whole or events) and not (came.messages and sent.messages):
            sent, came = self._with_rest(sent, came, values, has, events)
        if came.messages and kind not in ("inference", "log"):
            came = came._replace(messages=_last_turn(came.messages))
        return sent, came

    def _with_rest(self, sent: Told, came: Told, values: Values, has: Present, events: Sequence[Event]) -> tuple[Told, Told]:
        """Both sides, with what a whole conversation and events tell of the one that is missing."""
        whole = self._first(has.whole, values, "user")
        for asked, answered in (_parted(whole.messages), _told_by_events(events)):
            if not sent.messages:
                sent = _sent(asked, is_cut=sent.is_cut)
            if not came.messages:
                came = Told(answered, came.is_cut)
        return sent._replace(is_cut=sent.is_cut or whole.is_cut), came

    def _first(self, places: Iterable[named.Place], values: Values, role: str) -> Told:
        """The messages at the first place that has any."""
        for place in places:
            found = self._remembered(place, values, role)
            if found.messages:
                return found
        return _NOTHING

    def _remembered(self, place: named.Place, values: Values, role: str) -> Told:
        text = values.get(place.name) if place.shape == "json" else None
        if not isinstance(text, str):
            return _messages_at(place, values, role)
        if (messages := messages_of_parts(text)) is not None:  # sooner read than remembered
            return _told(messages, role)
        if len(text) > LONGEST_TEXT:
            return _messages_at(place, values, role)
        found = self._known.get((role, text))
        if found is None:
            found = _messages_at(place, values, role)
            if len(self._known) >= KEPT_TEXTS:
                self._known.clear()
            self._known[role, text] = found
        return found


def _messages_at(place: named.Place, values: Values, role: str) -> Told:
    """The messages at a place."""
    if place.shape == "flat":
        return _told([message_of(one, role) for one in unflattened(values, place.name)], role)
    value = values.get(place.name)
    read = parsed(value if place.shape == "json" or value is None else [{"role": role, "content": value}])
    return _told(messages_of(read.value, role), role, is_cut=read.is_cut)


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
        question=next((one.text for one in reversed(messages) if one.role == "user" and one.texts), None),
        results=tuple([result for one in after for result in one.results]),
        thoughts=_thoughts_before(messages, last) if last >= 0 and all(one.results for one in after) else (),
        compacted=any(one.compacted for one in messages),
    )


def _last_of_model(messages: Sequence[Message]) -> int:
    """The place of the last message of the model; -1 where there is none."""
    for place in range(len(messages) - 1, -1, -1):
        if messages[place].role == "assistant":
            return place
    return -1


def _thoughts_before(messages: Sequence[Message], last: int) -> tuple[str, ...]:
    """The thoughts of the model's messages up to this place, without anything between them."""
    first = last
    while first and messages[first - 1].role == "assistant":
        first -= 1
    return tuple([thought for one in messages[first : last + 1] for thought in one.thoughts])


def _last_turn(came: Sequence[Message]) -> Sequence[Message]:
    """The answer that ends what an agent or chain gives back, with the thoughts that led to it: its state may have the whole history."""
    asked = max((place for place, message in enumerate(came) if message.role == "user" and not message.results), default=-1)
    turn = [message for message in came[asked + 1 :] if message.role == "assistant"]
    if len(turn) < 2:
        return turn
    return [msgspec.structs.replace(turn[-1], thoughts=[thought for message in turn for thought in message.thoughts])]


def _parted(whole: Sequence[Message]) -> tuple[Sequence[Message], Sequence[Message]]:
    """A conversation as what was sent for its last answer, and that answer."""
    last = _last_of_model(whole)
    return (whole, ()) if last < 0 or last < len(whole) - 1 else (whole[:last], whole[last:])


def _told_by_events(events: Iterable[Event]) -> tuple[list[Message], list[Message]]:
    sent, came = list[Message](), list[Message]()
    for event in events:
        role = named.MESSAGE_EVENTS.get(event.name)
        if role == "choice":
            came.append(
                message_of({"role": "assistant", **{name: parsed(value).value for name, value in event.attributes.items()}})
            )
        elif role is not None:
            sent.append(message_of({"role": role, **event.attributes}, role))
    return sent, came
