"""The agent's answer to one user message, folded message by message.

1. The response is the text of the last message that does not ask for a tool; thinking is all thinking blocks; usage is the sum;
   model and stop reason are the last message's.
2. Zero usage beside content means that the usage is missing, not that the answer was free.
3. A mirror of what was delivered to a channel repeats an answer. It is the response only where there is no other.
4. Without any text the answer is an error or aborted where its last message says so, else there was no response.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from streams.sources.openclaw.entry import MAX_TOKENS, Entry
from streams.sources.openclaw.text import MIRROR_MODEL

Chain = tuple[Any, str]
"""Texts linked from the last to the first: (those before or None, the last one)."""

_FAILURES = {"error": "error", "aborted": "aborted"}
_AWAITED = {
    "toolUse": "a tool was called, and the agent has not answered since",
    "tool_use": "a tool was called, and the agent has not answered since",
    "error": "a request failed, and may be tried again",
    "aborted": "it was interrupted, and may go on",
}
_ENDED = frozenset({"stop", "length", "end_turn", "max_tokens", "stop_sequence", "refusal"})


class Question(msgspec.Struct, frozen=True, gc=False):
    """One user message: its entry, when it was written, its position among the session's user messages from 1, its text.

    `origin` is the tag of a message that no user wrote.
    """

    entry_id: str
    at: datetime
    turn: int
    text: str
    origin: str | None


class Fold(msgspec.Struct, frozen=True):
    """The sum of the assistant messages up to some point of a branch; `length` counts them without mirrors."""

    length: int = 0
    thinking: Chain | None = None
    thinking_characters: int = 0
    response: str = ""
    mirror: str = ""
    input_tokens: int | None = None
    output_tokens: int | None = None
    model: str | None = None
    stop: str | None = None

    @property
    def has_ended(self) -> bool:
        """True if the last message ended the answer: after it only a user message is expected."""
        return self.stop in _ENDED

    @property
    def outcome(self) -> str:
        """answered, or why there is no text: error, aborted or no_response."""
        return outcome_of(self.text, self.stop)

    @property
    def text(self) -> str:
        """The response, or its mirror where there is no other."""
        return self.mirror if self.is_mirrored else self.response

    @property
    def is_mirrored(self) -> bool:
        """True if there is nothing but a mirror."""
        return not self.response.strip() and bool(self.mirror.strip())


class Answer(msgspec.Struct, gc=False):
    """An answer to a question that may still grow. `key` is its id within the session, `at` when it was asked for.

    `exchange_id` is the id of its exchange, as soon as that is known. `is_turn_over` says that a line told so; `went_on` that more came
    although the answer counted already, so that an exchange that was handed out may have changed. `last_at` is when its last entry was
    written.
    """

    key: str
    at: datetime
    question: Question
    fold: Fold
    side: bool
    sealed: bool = False
    exchange_id: str = ""
    is_turn_over: bool = False
    went_on: bool = False
    last_at: datetime | None = None

    def counts(self, *, ends_turns: bool) -> bool:
        """Tell whether the answer ended by itself: it counts at once. `ends_turns`: a line tells when a turn is over."""
        return self.is_turn_over or (not ends_turns and self.fold.has_ended and bool(self.fold.text.strip()))

    def add(self, entry: Entry, at: datetime, *, ends_turns: bool) -> None:
        """Take a further message."""
        self.went_on = self.went_on or self.counts(ends_turns=ends_turns)
        self.is_turn_over, self.last_at = False, at
        self.fold = folded(self.fold, entry)

    @property
    def waits_for(self) -> str:
        """What is awaited before the answer counts, in words."""
        if not self.fold.length:
            return "it has no answer yet"
        return _AWAITED.get(self.fold.stop or "", "its turn has not ended")


def outcome_of(text: str, stop: str | None) -> str:
    """Return the outcome of an answer with this text that stopped for this reason."""
    return "answered" if text and not text.isspace() else _FAILURES.get(stop or "", "no_response")


def key_of(*entry_ids: str) -> str:
    """The key of an answer within its session: the ids of the user message and, of a further answer, of its first message."""
    return _escaped(entry_ids[0]) if len(entry_ids) == 1 else "~".join(map(_escaped, entry_ids))


def exchange_id_of(session_id: str, key: str) -> str:
    """The id of the exchange of an answer: no two sessions and answers come to the same one."""
    return f"{_escaped(session_id)}:{key}"


def folded(fold: Fold, entry: Entry) -> Fold:
    """The fold with one more assistant message."""
    if entry.is_mirror:
        named, stop = fold.model or MIRROR_MODEL, fold.stop or entry.stop
        return msgspec.structs.replace(fold, mirror=entry.text, model=named, stop=stop)
    thinking, characters = fold.thinking, fold.thinking_characters
    for block in entry.blocks:
        thought = block.get("thinking")
        if isinstance(thought, str) and thought:
            thinking, characters = (thinking, thought), characters + len(thought) + 2
    usage, stop, model = entry.usage, entry.stop, entry.message.get("model")
    return Fold(
        fold.length + 1,
        thinking,
        characters,
        fold.response if stop == "toolUse" else entry.text,
        fold.mirror,
        fold.input_tokens if usage is None else min((fold.input_tokens or 0) + usage.read, MAX_TOKENS),
        fold.output_tokens if usage is None else min((fold.output_tokens or 0) + usage.output, MAX_TOKENS),
        model if isinstance(model, str) else fold.model,
        stop,
    )


def thinking_text(fold: Fold) -> str | None:
    """All thinking blocks in order, joined by blank lines; None where there are none."""
    texts, chain = [], fold.thinking
    while chain is not None:
        chain, text = chain
        texts.append(text)
    return "\n\n".join(reversed(texts)) or None


def _escaped(part: str) -> str:
    if part.isalnum():  # as most
        return part
    return part.replace("%", "%25").replace(":", "%3A").replace("~", "%7E")
