"""The lines of one transcript, taken entry by entry: checked, placed in the tree, and turned into raw events.

The same entry twice counts once; an id that was given to another entry is a fault, and the first entry stays. A session line
counts only before all other entries. A torn last line ends the reading.

An event's id is `<entry id>`, or `<entry id>.<k>` where one entry gives several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from streams.sources.dialects import OPENCLAW, Dialect
from streams.sources.lines import Line, Problem, decode_line, is_torn, line_fault
from streams.sources.openclaw_answer import exchange_id_of
from streams.sources.openclaw_entry import Entry, has_bad_time
from streams.sources.openclaw_events import wrapped_calls
from streams.sources.openclaw_tree import Tree
from streams.sources.reading import LineFault, ReadingContext

Json = dict[str, Any]
EventSink = Callable[[Json, datetime], None]
"""Takes one raw event with its time; texts are whole."""


class Transcript:
    """Reads the lines of one transcript; `session_id` stands until a session line before all other entries says otherwise.

    `inherited` are the ids of entries that were copied from another session: they give the others their place, and nothing else,
    for they count where they were written first. `own_answers` are the keys of the answers that have an entry of this session.
    """

    def __init__(
        self,
        context: ReadingContext,
        *,
        session_id: str,
        sink: EventSink,
        follows_header: bool = True,
        inherited: frozenset[str] = frozenset(),
        dialect: Dialect = OPENCLAW,
    ) -> None:
        self.session_id = session_id
        self.own_answers: set[str] = set()
        self.faults: list[LineFault] = []
        self.tree = Tree(context.session_gap)
        self.is_torn = False
        self._context = context
        self._sink = sink
        self._follows_header = follows_header
        self._inherited = inherited
        self._dialect = dialect
        self._wrapped: dict[str, str] = {}
        self._seen: dict[str, bytes] = {}
        self._last_at = context.ingested_at

    def read(self, lines: Iterable[Line]) -> None:
        """Read all lines, up to a torn last one."""
        for line in lines:
            value = decode_line(line)
            if is_torn(line, value):
                self.is_torn = True
                return
            entries = value if isinstance(value, Problem) else self._dialect.entries(line.number, value)
            if isinstance(entries, Problem):
                problems = [entries]
                self.tree.add_damaged(value.get(self._dialect.id_field) if isinstance(value, dict) else None)
            else:
                found = (entry if isinstance(entry, Problem) else self._take(entry) for entry in entries)
                problems = [problem for problem in found if problem is not None]
            self.faults += (line_fault(line, problem) for problem in problems)

    def _take(self, entry: Entry) -> Problem | None:
        """Take one entry; what was wrong with it, which need not keep it from being taken."""
        known = self._seen.get(entry.id)
        if known is not None:
            problem = Problem("duplicate_id", f"id: {entry.id[:64]!r} was given to another entry before")
            return None if known == entry.digest else problem
        self._seen[entry.id] = entry.digest
        if entry.kind == "session":
            return self._take_header(entry)
        self._follows_header = False
        self._last_at = at = entry.at or self._last_at
        placement = self.tree.add(entry, at)
        self._wrapped |= wrapped_calls(entry)
        if entry.is_copy or entry.id in self._inherited:
            return None
        if placement.answer is not None:
            self.own_answers.add(placement.answer)
        self._emit(entry, at, answer=placement.answer, is_retry=placement.is_retry)
        if placement.problem is None and has_bad_time(entry):
            return Problem("bad_timestamp", "timestamp: is no time of the years 2000 to 2099; that of the entry before counts")
        return self._named(placement.problem)

    def _named(self, problem: Problem | None) -> Problem | None:
        """The problem with the dialect's name of the field, where the tree names OpenClaw's."""
        if problem is None or self._dialect.parent_field == "parentId":
            return problem
        return problem._replace(detail=problem.detail.replace("parentId:", f"{self._dialect.parent_field}:", 1))

    def _take_header(self, entry: Entry) -> Problem | None:
        self._last_at = entry.at or self._last_at
        if self._follows_header:
            self.session_id = entry.id
            self._follows_header = False
        elif entry.id != self.session_id:
            return Problem("second_session", f"id: the transcript is of session {self.session_id[:64]!r}; this line is ignored")
        return None

    def _emit(self, entry: Entry, at: datetime, *, answer: str | None, is_retry: bool) -> None:
        events = self._dialect.events(entry, is_retry=is_retry, wrapped=self._wrapped)
        # An id with a point always gets a number, so that no two entries can come to the same event id.
        numbered = len(events) > 1 or "." in entry.id
        for index, event in enumerate(events):
            event["event_id"] = f"{entry.id}.{index}" if numbered else entry.id
            event["entry_id"] = entry.id
            event["timestamp"] = at.isoformat()
            if answer is not None:
                event["exchange_id"] = exchange_id_of(self.session_id, answer)
            self._sink(event, at)
