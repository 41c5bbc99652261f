"""The rules for derived evidence over an OpenClaw transcript: they are fed entry by entry, and speak when an answer is over.

An answer is over when a user message follows, or nothing for longer than the session gap: never earlier, for what was told cannot be
taken back. What stands then comes before the events of the entry that ended it, wherever the file was cut between two readings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any

import msgspec

from streams.sources.derived.derivations import ExchangeEvidence, SessionTexts
from streams.sources.openclaw.answer import Answer
from streams.sources.openclaw.entry import Entry
from streams.sources.openclaw.text import unwrap

Json = dict[str, Any]


class _Open(msgspec.Struct, gc=False):
    """An answer that is not over: what it shows so far, the id its events hang on, and the time of its last entry."""

    evidence: ExchangeEvidence
    anchor: str
    at: datetime


class DerivedEvents:
    """Derives the events of one transcript. `skills` are the names of the skills its agent has."""

    def __init__(self, skills: frozenset[str]) -> None:
        self._skills = skills
        self._texts = SessionTexts()
        self._read: set[str] = set()
        self._open: dict[str, _Open] = {}

    def take(self, entry: Entry, at: datetime, answer: Answer, events: Iterable[Json] | None) -> None:
        """Take one entry of an answer and its raw events; None for an entry that counts in another session."""
        known = self._open.get(answer.key)
        if known is None:
            question = unwrap(answer.question.text).text
            evidence = ExchangeEvidence(question, self._texts, skills=self._skills, read=self._read)
            known = self._open[answer.key] = _Open(evidence, entry.id, at)
        known.at = at
        if events is None:
            known.evidence.said(entry.text)
        elif entry.role == "assistant" and not entry.is_mirror:
            _take_message(known.evidence, entry, events)
        elif entry.role == "toolResult":
            for output in events:
                if output["event"] == "tool_output":
                    known.evidence.returned(output, f"{entry.id}.use")

    def over(self, answer: Answer) -> Iterator[tuple[Json, datetime]]:
        """The events of an answer that is over, with ids and times."""
        known = self._open.pop(answer.key, None)
        if known is None:
            return
        events = known.evidence.over() if answer.fold.has_ended and answer.fold.text.strip() else []
        known.evidence.hand_over()
        for index, event in enumerate(events):
            # No entry's event can have such an id: what follows the point of an entry's id is a number.
            event.setdefault("event_id", f"{known.anchor}.skill-{index}")
            yield event, known.at


def _take_message(evidence: ExchangeEvidence, entry: Entry, events: Iterable[Json]) -> None:
    for block in entry.blocks:
        kind = block.get("type")
        if kind == "text" or kind == "thinking":  # noqa: PLR1714 - it may be no text
            text = block.get(kind)
            if isinstance(text, str):
                evidence.said(text)
    if entry.calls:
        for call in events:
            if call["event"] == "tool_call":
                evidence.called(call)
