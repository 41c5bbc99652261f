"""The lines of one transcript, taken entry by entry: checked, placed in the tree, and turned into raw events.

The same entry twice counts once; an id that was given to another entry is a fault, and the first entry stays. A session line
counts only before all other entries. A torn last line ends the reading.

An event's id is `<entry id>`, or `<entry id>.<k>` where one entry gives several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from hashlib import blake2b
from typing import Any

from streams.sources.dialects import OPENCLAW, Dialect
from streams.sources.lines import Line, Problem, decode_line, is_torn, line_fault
from streams.sources.openclaw.answer import Answer, exchange_id_of
from streams.sources.openclaw.derived import DerivedEvents
from streams.sources.openclaw.entry import TURN_END, Entry, content_of, has_bad_time
from streams.sources.openclaw.events import wrapped_calls
from streams.sources.openclaw.run_facts import Note, Notes
from streams.sources.openclaw.tree import Placement, Tree
from streams.sources.source import LineFault, ReadingContext

MAX_KEPT = 4096
"""Bytes of the longest line that is kept while its transcript is read; of others the digest of their content is."""
_DIGEST_SIZE = 16

Json = dict[str, Any]
EventSink = Callable[[Json, datetime], None]
"""Takes one raw event with its time; texts are whole."""


class Transcript:
    """Reads the lines of one transcript; `session_id` stands until a session line before all other entries says otherwise.

    `inherited` are the ids of entries that were copied from another session: they give the others their place, and nothing else,
    for they count where they were written first. `began_at` is the time of the first entry that has one; `own_answers` are the keys of the answers that have an entry of this session.
    """

    def __init__(
        self,
        context: ReadingContext,
        *,
        session_id: str,
        sink: EventSink,
        follows_header: bool = True,
        inherited: frozenset[str] = frozenset(),
        skills: frozenset[str] = frozenset(),
        dialect: Dialect = OPENCLAW,
        notes: Notes | None = None,
    ) -> None:
        self.session_id = session_id
        self.own_answers: set[str] = set()
        self.faults: list[LineFault] = []
        self.tree = Tree(context.session_gap, ends_turns=dialect.ends_turns)
        self.is_torn = False
        self._context = context
        self._sink = sink
        self._follows_header = follows_header
        self._inherited = inherited
        self._dialect = dialect
        self._wrapped: dict[str, str] = {}
        self._notes = notes
        if notes is not None:
            notes.wrapped = self._wrapped
        self._derived = DerivedEvents(skills)
        self._seen: dict[str, bytes] = {}
        self.began_at: datetime | None = None
        self._last_at = context.ingested_at

    def read(self, lines: Iterable[Line]) -> None:
        """Read all lines, up to a torn last one."""
        entries_of, take = self._dialect.entries, self._take
        for line in lines:
            value = decode_line(line)
            if isinstance(value, Problem):
                if is_torn(line, value):
                    self.is_torn = True
                    return
                self._set_aside(line, value, None)
                continue
            entries = entries_of(line, value)
            if isinstance(entries, Problem):
                self._set_aside(line, entries, value.get(self._dialect.id_field))
                continue
            for entry in entries:
                problem = entry if isinstance(entry, Problem) else take(entry, line)
                if problem is not None:
                    self.faults.append(line_fault(line, problem))

    def _set_aside(self, line: Line, problem: Problem, entry_id: object) -> None:
        """Note a line that is no entry."""
        self.tree.add_damaged(entry_id)
        self.faults.append(line_fault(line, problem))

    def _take(self, entry: Entry, line: Line) -> Problem | None:
        """Take one entry; what was wrong with it, which need not keep it from being taken."""
        content = line.body if entry.digest is None and line.size <= MAX_KEPT else self._content(entry, line)
        known = self._seen.get(entry.id)
        if known is not None:
            problem = Problem("duplicate_id", f"id: {entry.id[:64]!r} belongs to an earlier entry")
            return None if _is_same(known, content) else problem
        self._seen[entry.id] = content
        if self.began_at is None:
            self.began_at = entry.at
        if entry.kind == "session":
            return self._take_header(entry)
        self._follows_header = False
        self._last_at = at = entry.at or self._last_at
        tree = self.tree
        placement = tree.add(entry, at)
        answer = placement.answer
        if entry.calls:
            self._wrapped |= wrapped_calls(entry)
        if self._notes is not None:
            self._note(self._notes, entry, at, answer)
        if tree.just_sealed:
            for over in tree.take_sealed():
                self._emit_derived(over)
        if entry.kind == TURN_END:
            return None
        if entry.is_copy or entry.id in self._inherited:
            if answer is not None and not answer.sealed and self._dialect.derives:
                self._derived.take(entry, at, answer, None)
            return None
        self._give(entry, at, placement)
        if entry.at is None and placement.problem is None and has_bad_time(entry):
            return Problem("bad_timestamp", "timestamp: is not a time in the years 2000 to 2099; the previous entry's is used")
        return None if placement.problem is None else self._named(placement.problem)

    def _give(self, entry: Entry, at: datetime, placement: Placement) -> None:
        """Hand out the events of an entry that counts here, and show it to the rules as long as its answer may grow."""
        answer = placement.answer
        events = self._dialect.events(entry, is_retry=placement.is_retry, wrapped=self._wrapped)
        if answer is not None:
            self.own_answers.add(answer.key)
            if not answer.sealed and self._dialect.derives:
                self._derived.take(entry, at, answer, events)
        if events:
            self._emit(entry, at, events, answer=answer)

    def _content(self, entry: Entry, line: Line) -> bytes:
        """The bytes that tell an entry from another one of its id: short lines as they are, because few have to be compared."""
        if entry.digest is not None:
            return entry.digest
        return line.body if line.size <= MAX_KEPT else _digest(content_of(line.body))

    def _named(self, problem: Problem) -> Problem:
        """The problem with the dialect's name of the field, where the tree names OpenClaw's."""
        if self._dialect.parent_field == "parentId":
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

    def end(self) -> None:
        """Nothing follows: every answer is over. Tells what that shows."""
        for answer in self.tree.answers:
            if not answer.sealed:  # what was sealed has told already
                self._emit_derived(answer)

    def _emit_derived(self, answer: Answer) -> None:
        for event, at in self._derived.over(answer):
            if answer.key in self.own_answers:
                event["exchange_id"] = self.exchange_id(answer)
                self.emit(event, at)

    def exchange_id(self, answer: Answer) -> str:
        """The id of an answer's exchange: the session's id stands before the first entry is taken."""
        if not answer.exchange_id:
            answer.exchange_id = exchange_id_of(self.session_id, answer.key)
        return answer.exchange_id

    def _emit(self, entry: Entry, at: datetime, events: list[Json], *, answer: Answer | None) -> None:
        # An id with a point always gets a number, so that no two entries can come to the same event id.
        numbered = len(events) > 1 or "." in entry.id
        entry_id, source, timestamp = entry.id, self._dialect.source, at.isoformat()
        exchange_id = None if answer is None else answer.exchange_id or self.exchange_id(answer)
        for index, event in enumerate(events):
            event["entry_id"] = entry_id
            event["source"] = source
            event["timestamp"] = timestamp
            if exchange_id is not None:
                event["exchange_id"] = exchange_id
            event["event_id"] = f"{entry_id}.{index}" if numbered else entry_id
            self._sink(event, at)

    def emit(self, event: Json, at: datetime) -> None:
        """Hand out one event of the session."""
        event["source"] = self._dialect.source
        event["timestamp"] = at.isoformat()
        self._sink(event, at)

    def _note(self, notes: Notes, entry: Entry, at: datetime, answer: Answer | None) -> None:
        """Note what the trajectory may tell again."""
        if entry.role == "assistant":
            notes.calls.update(block["id"] for block in entry.calls if isinstance(block.get("id"), str))
            if not entry.is_mirror:
                exchange = None if answer is None else self.exchange_id(answer)
                notes.add(Note(at, _run_of(entry), exchange, entry.stop, entry.usage))
        elif entry.role == "toolResult" and isinstance(entry.message.get("toolCallId"), str):
            notes.results.add(entry.message["toolCallId"])


def _is_same(known: bytes, given: bytes) -> bool:
    """Tell whether two entries of one id have the same content, given what is kept of them."""
    return known == given or _compared(known) == _compared(given)


def _compared(kept: bytes) -> bytes:
    """The digest of a content of which the line was kept: no entry's line is as short as a digest."""
    return kept if len(kept) == _DIGEST_SIZE else _digest(content_of(kept))


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=_DIGEST_SIZE).digest()


def _run_of(entry: Entry) -> str | None:
    """The run that wrote a message, where it says so."""
    own = entry.message.get("__openclaw")
    run = own.get("runId") if isinstance(own, dict) else None
    return run if isinstance(run, str) else None
