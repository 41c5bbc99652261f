"""Dialects: how each program writes the lines of a transcript, so that one reader serves all of them.

A dialect turns one decoded line into entries as OpenClaw writes them, which the transcript, its tree and its records take from there.
It keeps what a later line refers to, so that each reading has a dialect of its own; what it gives for a line depends on that line
and those before it alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from streams.sources.lines import Line, Problem
from streams.sources.openclaw.entry import Entry, read_entry
from streams.sources.openclaw.events import events_of
from streams.sources.openclaw.text import Unwrapped, answer_tags, question_tags, unwrap

SOURCE = "openclaw"
"""The source that events of OpenClaw's own records name."""

Json = dict[str, Any]


class Dialect(Protocol):
    """Reads the lines of one transcript.

    `source` is what its events say they come from, `id_field` and `parent_field` are the fields of a line's id and its parent's.
    `ends_turns` says that its lines tell when a turn is over, by an entry of kind TURN_END. `derives` says that the rules for derived evidence were tried on its transcripts, so that they speak.
    """

    source: str
    id_field: str
    parent_field: str
    derives: bool
    ends_turns: bool

    def entries(self, line: Line, body: Json) -> Sequence[Entry | Problem] | Problem:
        """The entries that the line with this body stands for, perhaps none, and what is wrong beside them.

        A Problem alone says that the line is no entry: what names it as its parent stands where the line stood.
        """
        ...

    def events(self, entry: Entry, *, is_retry: bool, wrapped: Mapping[str, str]) -> list[Json]:
        """The events of one of these entries, in order and without ids."""
        ...

    def unwrap(self, text: str) -> Unwrapped:
        """A user's message without what the program wrapped around it."""
        ...

    def tags(self, question: str, response: str) -> set[str]:
        """The tags of an exchange that its texts give."""
        ...


class OpenClawDialect:
    """OpenClaw's own: a line is an entry."""

    source = SOURCE
    id_field = "id"
    parent_field = "parentId"
    derives = True
    ends_turns = False

    def entries(self, line: Line, body: Json) -> Sequence[Entry | Problem] | Problem:
        """The entry that the line is."""
        entry = read_entry(body, is_whole=line.is_whole)
        return entry if isinstance(entry, Problem) else (entry,)

    def events(self, entry: Entry, *, is_retry: bool, wrapped: Mapping[str, str]) -> list[Json]:
        """The events of the entry."""
        return events_of(entry, is_retry=is_retry, wrapped=wrapped)

    def unwrap(self, text: str) -> Unwrapped:
        """The message without metadata and stamp."""
        return unwrap(text)

    def tags(self, question: str, response: str) -> set[str]:
        """Heartbeats, silence, scheduled runs and messages between sessions."""
        return question_tags(question) | answer_tags(response)


OPENCLAW = OpenClawDialect()
"""It keeps nothing, so that one serves all readings."""
