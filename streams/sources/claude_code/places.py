"""Places of lines in a Claude Code transcript: each belongs to a question or to a message of the model.

Attachments, notices and results of tools stand where their parent does, and what follows them does so too. So an answer is one
chain, although the program hangs the results of parallel calls below different lines.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from streams.sources.openclaw.entry import Entry

Said = TypeVar("Said")


@dataclass(eq=False, slots=True)
class Place:
    """A place: `leaf` is the entry that the next one follows, `is_under_way` says that an answer is awaited or goes on.

    `question` waits there to be asked, until the agent answers it.
    """

    leaf: str | None
    is_under_way: bool = False
    question: Entry | None = None


@dataclass(eq=False, slots=True)
class Message(Generic[Said]):
    """One message of the model: its place, whose leaf is its last line so far, and what it said so far."""

    place: Place
    said: Said

    @property
    def has_begun(self) -> bool:
        """True if a line of it was read."""
        return self.place.leaf is not None

    def follows(self, parent: Place) -> Place:
        """The place that its next line follows: its own, or that of the parent where it is the first."""
        return parent if self.place.leaf is None else self.place


@dataclass(slots=True)
class Places:
    """The places of the lines so far, by uuid, and the messages by their ids."""

    _by_uuid: dict[str, Place] = field(default_factory=dict)
    _messages: dict[tuple[bool, str, str | None], Message[Any]] = field(default_factory=dict)

    def __contains__(self, uuid: str) -> bool:
        return uuid in self._by_uuid

    def at(self, parent: Any) -> Place:
        """The place of a parent; a parent that was never seen is a place of its own, and null the beginning."""
        if not isinstance(parent, str):
            return Place(None)
        return self._by_uuid.get(parent) or Place(parent)

    def stand_in(self, uuid: str, place: Place) -> None:
        """Have a line stand where its parent does."""
        self._by_uuid.setdefault(uuid, place)

    def ask(self, uuid: str) -> None:
        """Note a question."""
        self._by_uuid.setdefault(uuid, Place(uuid, is_under_way=True))

    def ask_later(self, uuid: str, place: Place, question: Entry) -> None:
        """Note a question that is one only when the agent answers it."""
        self._by_uuid.setdefault(uuid, Place(place.leaf, is_under_way=True, question=question))

    def asked(self, place: Place) -> list[Entry]:
        """The question that waits at a place, which now is asked."""
        question, place.question = place.question, None
        if question is None:
            return []
        place.leaf = question.id
        return [question]

    def replay(self, uuid: str, place: Place, message: Message[Any]) -> None:
        """Have a line that repeats a message stand where the message does, and what led to it as well."""
        place.question, place.leaf, place.is_under_way = None, message.place.leaf, message.place.is_under_way
        self._by_uuid.setdefault(uuid, message.place)

    def message(self, uuid: str, message_id: Any, request_id: Any, *, side: bool, begin: Callable[[], Said]) -> Message[Said]:
        """The message with these ids, begun where it is new; a line without a message id is a message by itself."""
        named = message_id if isinstance(message_id, str) else f"/{uuid}"
        key = side, named, request_id if isinstance(request_id, str) else None
        return self._messages.setdefault(key, Message(Place(None), begin()))

    def say(self, uuid: str, message: Message[Any], stop: Any) -> None:
        """Note that the line with this uuid is the last of its message, and why that stopped."""
        message.place.leaf = uuid
        message.place.is_under_way = stop is None or stop == "tool_use"
        self._by_uuid.setdefault(uuid, message.place)
