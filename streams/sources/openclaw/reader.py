"""OpenClaw transcripts as exchanges and events: lines → entries → tree → records, in one pass.

1. Reading is pure: the same lines and context give the same records. Records of the first lines of a file stay the same when the file
   grows, with two exceptions: an exchange may become abandoned, and an answer that ended by itself counts at once, so if its turn goes
   on, its exchange is among the `revisable` ones.
2. An exchange's id is `<session id>:<entry id of the user message>`; a further answer to the same message adds
   `~<entry id of its first message>`. Separators within the ids are escaped (`%3A`, `%7E`, and `%25` for `%`). An event's id is
   `<entry id>`, or `<entry id>.<k>` if an entry has several events.
3. A repeated entry counts once. A different entry with a used id is a fault, and the first entry is kept. A session line counts only before
   all other entries. A torn last line ends the reading.
4. Evidence is derived when an answer is over: when a user message follows, or nothing follows for longer than the session gap. It is never
   derived earlier, because an event cannot be withdrawn. Its events come before those of the entry that ended the answer, regardless of
   where the file was cut between two readings.
5. Each program's dialect turns a decoded line into entries in OpenClaw's form, so that one reader serves all programs. A dialect keeps what
   later lines refer to, so each reading has its own. Its result depends only on the line and the lines before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any, Protocol

import msgspec

from audit.diagnosis.duplicate_rules import read_digest
from schemas.bounds import MAX_ID
from schemas.errors import InputError
from schemas.records import Exchange
from streams.sources.copies import merge_copies
from streams.sources.derived_evidence import ExchangeEvidence, SessionTexts
from streams.sources.exchange_builder import ExchangeDraft, ExchangeSettings, build_exchange
from streams.sources.lines import Line, Problem, decode_line, is_linked, is_torn, line_fault, may_be_copy, read_lines
from streams.sources.openclaw.companions import (
    TRAJECTORY,
    Window,
    is_set_aside,
    read_header,
    read_trajectory,
    read_window,
    stem_of,
)
from streams.sources.openclaw.entry import TURN_END, Entry, content_of, has_bad_time, read_entry
from streams.sources.openclaw.events import SessionEvents, events_of, wrapped_calls
from streams.sources.openclaw.text import Unwrapped, answer_tags, question_tags, unwrap
from streams.sources.openclaw.trajectory import Note, Notes, Trajectory, events_of_run, skills_event
from streams.sources.openclaw.tree import Answer, Placement, Tree, exchange_id_of, outcome_of, thinking_text
from streams.sources.source import LineFault, PendingAnswer, Reading, ReadingContext

Json = dict[str, Any]
MAX_KEPT = 4096
"""Bytes of the longest line that is kept while its transcript is read. Longer lines are kept as a digest."""
_DIGEST_SIZE = 16
EventSink = Callable[[Json, datetime], None]
"""Receives a raw event and its time. Texts are uncut."""
SOURCE = "openclaw"
"""The `source` of events from OpenClaw's own records."""


def find_transcripts(path: Path) -> list[Path]:
    """Return the transcripts at a path, sorted.

    These are the file itself, or all `agents/<agent>/sessions/*.jsonl` below a directory and the other `*.jsonl` files that start with a
    session line, including backups and those set aside by a reset or deletion. Symbolic links are not followed. `*.trajectory.jsonl` files
    have another format and are left out.

    Raises InputError if the path does not exist.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"{path}: does not exist", hint="Give a transcript or the directory that holds `agents/`.")
    transcripts = []
    for file in path.rglob("*.jsonl*"):
        if not _may_be_transcript(file.name) or is_linked(file, path) or not file.is_file():
            continue
        is_named = file.suffix == ".jsonl" or is_set_aside(file.name)
        if (is_named and _is_in_sessions(file)) or _begins_with_session(file):
            transcripts.append(file)
    return sorted(transcripts)


def _may_be_transcript(name: str) -> bool:
    """Return whether a file with this name may be a transcript."""
    return not name.startswith(".") and TRAJECTORY not in name and (may_be_copy(name) or is_set_aside(name))


def _is_in_sessions(file: Path) -> bool:
    """Return whether the file lies at `agents/<agent>/sessions/`."""
    parents = file.resolve().parents
    return len(parents) > 2 and parents[0].name == "sessions" and parents[2].name == "agents"


def _begins_with_session(file: Path) -> bool:
    """Return whether the file's first line is a session line; False for a file that cannot be read."""
    try:
        with file.open("rb") as stream:
            first = next(read_lines(stream), None)
    except OSError:
        return False
    value = None if first is None else decode_line(first)
    return isinstance(value, dict) and value.get("type") == "session"


def read_transcript(path: Path, context: ReadingContext) -> Reading:
    """Read one transcript. Raises InputError if the file cannot be opened."""
    agent = path.resolve().parent.parent.name if _is_in_sessions(path) else None
    try:
        with path.open("rb") as stream:
            written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            return read_session(
                merge_copies(path, read_lines(stream), context.copies, OPENCLAW.id_field),
                context,
                session_id=stem_of(path.name)[:MAX_ID] or path.stem[:MAX_ID],
                agent=agent,
                is_abandoned=context.ingested_at - written > context.session_gap,
                window=read_window(path, read_header(path)),
                trajectory=read_trajectory(path),
            )
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", hint="Check the path and its permissions.") from error


class Dialect(Protocol):
    """Reads the lines of one transcript.

    `source` is the `source` of its events; `id_field` and `parent_field` name the fields of a line's id and its parent's id. `ends_turns`:
    an entry of kind TURN_END marks the end of a turn. `derives`: the rules for derived evidence were validated on its transcripts and apply.
    """

    source: str
    id_field: str
    parent_field: str
    derives: bool
    ends_turns: bool

    def entries(self, line: Line, body: Json) -> Sequence[Entry | Problem] | Problem:
        """Return the entries of a line, possibly none, with the problems of its parts.

        A single Problem means that the line has no entry: its children get the line's position.
        """
        ...

    def events(self, entry: Entry, *, is_retry: bool, wrapped: Mapping[str, str]) -> list[Json]:
        """Return the events of one of these entries, in order and without ids."""
        ...

    def unwrap(self, text: str) -> Unwrapped:
        """Return a user's message without the program's wrapping."""
        ...

    def tags(self, question: str, response: str) -> set[str]:
        """Return the tags that follow from the texts of an exchange."""
        ...


class OpenClawDialect:
    """OpenClaw's dialect: each line is an entry."""

    source = SOURCE
    id_field = "id"
    parent_field = "parentId"
    derives = True
    ends_turns = False

    def entries(self, line: Line, body: Json) -> Sequence[Entry | Problem] | Problem:
        """Return the entry that the line is."""
        entry = read_entry(body, is_whole=line.is_whole)
        return entry if isinstance(entry, Problem) else (entry,)

    def events(self, entry: Entry, *, is_retry: bool, wrapped: Mapping[str, str]) -> list[Json]:
        """Return the events of the entry."""
        return events_of(entry, is_retry=is_retry, wrapped=wrapped)

    def unwrap(self, text: str) -> Unwrapped:
        """Return the message without metadata and stamp."""
        return unwrap(text)

    def tags(self, question: str, response: str) -> set[str]:
        """Return the tags for heartbeats, silence, scheduled runs and messages between sessions."""
        return question_tags(question) | answer_tags(response)


OPENCLAW = OpenClawDialect()
"""The shared dialect: it has no state."""


def read_session(
    lines: Iterable[Line],
    context: ReadingContext,
    *,
    session_id: str,
    agent: str | None,
    follows_header: bool = True,
    is_abandoned: bool = False,
    window: Window = Window(),  # noqa: B008 - it cannot be changed
    trajectory: Trajectory | None = None,
    dialect: Dialect = OPENCLAW,
) -> Reading:
    """Return the records of one session's lines.

    `session_id` and `agent` are defaults. A leading session line overrides the first unless `follows_header` is off, the context overrides
    the second. `is_abandoned`: nothing was written for longer than the session gap, so a torn line will not be completed. `window` are the
    facts about the session from outside its lines, `trajectory` is the separate record of its runs.
    """
    builder = _Records(context, context.agent or agent, window, dialect)
    notes = Notes() if trajectory is not None and trajectory.runs else None
    transcript = Transcript(
        context,
        session_id=session_id,
        sink=builder.events.add,
        follows_header=follows_header,
        inherited=window.inherited,
        skills=_skill_names(window, trajectory),
        dialect=dialect,
        notes=notes,
    )
    builder.transcript = transcript
    transcript.read(lines)
    runs_are_complete = _emit_runs(transcript, notes or Notes(), trajectory or Trajectory(), window, context)
    tree = transcript.tree
    # An answer may wait for a line that is being written, so silence does not end it.
    is_idle = tree.is_idle(context.ingested_at) and (is_abandoned or not transcript.is_torn)
    if is_idle:
        transcript.end()
    answers = [answer for answer in tree.answers if answer.key in transcript.own_answer_keys]
    pending = [answer for answer in answers if not (answer.sealed or is_idle)]
    still_open = [answer for answer in pending if not answer.counts(ends_turns=dialect.ends_turns)]
    open_keys = {answer.key for answer in still_open}
    counted = [answer for answer in answers if answer.key not in open_keys]
    abandoned_keys = tree.abandoned()
    return Reading(
        exchanges=builder.exchanges([(answer, answer.key in abandoned_keys) for answer in counted]),
        events=builder.events.records(transcript.session_id),
        faults=transcript.faults + (trajectory.faults if trajectory is not None else []),
        complete=not transcript.is_torn and not pending and (runs_are_complete or is_abandoned),
        session_ids=[transcript.session_id],
        open=[_open_answer(answer, transcript, context) for answer in still_open],
        revisable=frozenset(transcript.exchange_id(answer) for answer in counted if answer.went_on),
    )


class _Records:
    """Builds the records of a transcript: redacts, then cuts, then fills the fields."""

    transcript: Transcript

    def __init__(self, context: ReadingContext, agent: str | None, window: Window, dialect: Dialect) -> None:
        self.events = SessionEvents(context, agent)
        self._window = window
        self._context = context
        self._settings = ExchangeSettings(
            connection=context.connection,
            project=context.project,
            ingested_at=context.ingested_at,
            redact=context.redactor.redact,
            agent=agent,
            unwrap=dialect.unwrap,
            tags=dialect.tags,
        )

    def exchanges(self, answers: Iterable[tuple[Answer, bool]]) -> list[Exchange]:
        """Return the exchanges of answers, given with whether each is abandoned."""
        return [self._exchange(self._draft_of(answer, abandoned=abandoned)) for answer, abandoned in answers]

    def _exchange(self, draft: ExchangeDraft) -> Exchange:
        return build_exchange(
            draft, self._settings, lambda clean: read_digest(clean.question, clean.answer, clean.thinking, draft.at)
        )

    def _draft_of(self, answer: Answer, *, abandoned: bool) -> ExchangeDraft:
        question, fold = answer.question, answer.fold
        tags = self._window.tags
        # A subagent works beside the conversation, which never returns to it.
        if abandoned and question.origin != "subagent":
            tags |= {"abandoned"}
        if question.origin:
            tags |= {question.origin}
        text = fold.text
        if text is not fold.response:
            tags |= {"delivery_mirror"}
        return ExchangeDraft(
            exchange_id=self.transcript.exchange_id(answer),
            session_id=self.transcript.session_id,
            at=answer.at,
            question=question.text,
            answer=text,
            outcome=outcome_of(text, fold.stop),
            thinking=None if fold.thinking is None else thinking_text(fold),
            turn_number=question.turn,
            model=fold.model,
            input_tokens=fold.input_tokens,
            output_tokens=fold.output_tokens,
            stop_reason=fold.stop,
            multi_user=self._window.multi_user,
            tags=tags,
        )


def _skill_names(window: Window, trajectory: Trajectory | None) -> frozenset[str]:
    """Return the names of the skills that the session's agent is known to have."""
    runs = trajectory.runs.values() if trajectory is not None else ()
    return frozenset(window.skills).union(*(run.skills or () for run in runs))


def _emit_runs(transcript: Transcript, notes: Notes, trajectory: Trajectory, window: Window, context: ReadingContext) -> bool:
    """Emit the events that only the trajectory has. Return whether every run in it is settled."""
    settled = list(trajectory.settled(context.ingested_at, context.session_gap))
    starts = sorted(run.started_at for run in trajectory.runs.values() if run.started_at is not None)
    for run in settled:
        next_index = bisect_right(starts, run.last_at) if run.last_at is not None else len(starts)
        next_start = starts[next_index] if next_index < len(starts) else None
        for event, at in events_of_run(run, notes, until=next_start, fill=window.fill):
            transcript.emit(event, at)
    if transcript.began_at is not None:
        for names in _skill_lists(trajectory, window):
            # The time is the session's: a run's would change when OpenClaw forgets its first runs.
            transcript.emit(skills_event(names), transcript.began_at)
    return len(settled) == len(trajectory.runs) and not trajectory.is_torn


def _skill_lists(trajectory: Trajectory, window: Window) -> list[tuple[str, ...]]:
    """Return the distinct lists of skills that the runs had; the session's list if no run has one."""
    lists: list[tuple[str, ...]] = []
    for run in trajectory.runs.values():
        if run.skills and tuple(run.skills) not in lists:
            lists.append(tuple(run.skills))
    if not lists and window.skills:
        lists.append(tuple(window.skills))
    return lists


def _open_answer(answer: Answer, transcript: Transcript, context: ReadingContext) -> PendingAnswer:
    reason = "its last line is still being written" if transcript.is_torn else answer.waits_for
    counts_at = (answer.last_at or answer.at) + context.session_gap
    return PendingAnswer(transcript.session_id, transcript.exchange_id(answer), answer.at, reason, counts_at)


class Transcript:
    """Reads the lines of one transcript. A session line before all other entries may change `session_id`.

    `inherited` are the ids of entries copied from another session: they only give the other entries their position, because they count in
    the session where they were written. `began_at` is the time of the first entry that has one; `own_answer_keys` are the keys of the
    answers that have an entry of this session.
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
        self.own_answer_keys: set[str] = set()
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
        self._derived = _DerivedEvents(skills)
        self._seen: dict[str, bytes] = {}
        self.began_at: datetime | None = None
        self._last_at = context.ingested_at

    def read(self, lines: Iterable[Line]) -> None:
        """Read all lines, up to a torn last one."""
        entries_of, add_entry = self._dialect.entries, self._add_entry
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
                problem = entry if isinstance(entry, Problem) else add_entry(entry, line)
                if problem is not None:
                    self.faults.append(line_fault(line, problem))

    def _set_aside(self, line: Line, problem: Problem, entry_id: object) -> None:
        """Record a line without an entry."""
        self.tree.add_damaged(entry_id)
        self.faults.append(line_fault(line, problem))

    def _add_entry(self, entry: Entry, line: Line) -> Problem | None:
        """Add an entry. Return its problem, if any, which need not prevent adding it."""
        content = line.body if entry.digest is None and line.size <= MAX_KEPT else self._content(entry, line)
        earlier = self._seen.get(entry.id)
        if earlier is not None:
            return None if _is_same(earlier, content) else _duplicate_problem(entry)
        self._seen[entry.id] = content
        if self.began_at is None:
            self.began_at = entry.at
        if entry.kind == "session":
            return self._read_header(entry)
        self._follows_header = False
        self._last_at = at = entry.at or self._last_at
        tree = self.tree
        placement = tree.add(entry, at)
        answer = placement.answer
        if entry.calls:
            self._wrapped |= wrapped_calls(entry)
        if self._notes is not None:
            self._note_message(self._notes, entry, at, answer)
        if tree.just_sealed:
            for over in tree.take_sealed():
                self._emit_derived(over)
        if entry.kind == TURN_END:
            return None
        if entry.is_copy or entry.id in self._inherited:
            if answer is not None and not answer.sealed and self._dialect.derives:
                self._derived.add(entry, at, answer, None)
            return None
        self._emit_events(entry, at, placement)
        if entry.at is None and placement.problem is None and has_bad_time(entry):
            return Problem("bad_timestamp", "timestamp: is not a time in the years 2000 to 2099; the previous entry's is used")
        return None if placement.problem is None else self._rename_field(placement.problem)

    def _emit_events(self, entry: Entry, at: datetime, placement: Placement) -> None:
        """Emit the events of an entry that counts here. Pass it to the evidence rules while its answer may grow."""
        answer = placement.answer
        events = self._dialect.events(entry, is_retry=placement.is_retry, wrapped=self._wrapped)
        if answer is not None:
            self.own_answer_keys.add(answer.key)
            if not answer.sealed and self._dialect.derives:
                self._derived.add(entry, at, answer, events)
        if events:
            self._emit(entry, at, events, answer=answer)

    def _content(self, entry: Entry, line: Line) -> bytes:
        """Return the bytes that distinguish an entry from others with the same id. Short lines are kept whole: few are ever compared."""
        if entry.digest is not None:
            return entry.digest
        return line.body if line.size <= MAX_KEPT else _digest(content_of(line.body))

    def _rename_field(self, problem: Problem) -> Problem:
        """Return the problem with the dialect's name of the parent field instead of OpenClaw's."""
        if self._dialect.parent_field == "parentId":
            return problem
        return problem._replace(detail=problem.detail.replace("parentId:", f"{self._dialect.parent_field}:", 1))

    def _read_header(self, entry: Entry) -> Problem | None:
        self._last_at = entry.at or self._last_at
        if self._follows_header:
            self.session_id = entry.id
            self._follows_header = False
        elif entry.id != self.session_id:
            return Problem("second_session", f"id: the transcript is of session {self.session_id[:64]!r}; this line is ignored")
        return None

    def end(self) -> None:
        """End the transcript: emit the derived events of all answers."""
        for answer in self.tree.answers:
            if not answer.sealed:  # the events of sealed answers were emitted before
                self._emit_derived(answer)

    def _emit_derived(self, answer: Answer) -> None:
        for event, at in self._derived.over(answer):
            if answer.key in self.own_answer_keys:
                event["exchange_id"] = self.exchange_id(answer)
                self.emit(event, at)

    def exchange_id(self, answer: Answer) -> str:
        """Return the id of an answer's exchange. The session's id is final before the first entry is added."""
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
        """Emit one event of the session."""
        event["source"] = self._dialect.source
        event["timestamp"] = at.isoformat()
        self._sink(event, at)

    def _note_message(self, notes: Notes, entry: Entry, at: datetime, answer: Answer | None) -> None:
        """Record the calls, results and messages that the trajectory may repeat."""
        if entry.role == "assistant":
            notes.calls.update(block["id"] for block in entry.calls if isinstance(block.get("id"), str))
            if not entry.is_mirror:
                exchange = None if answer is None else self.exchange_id(answer)
                notes.add(Note(at, _run_id_of(entry), exchange, entry.stop, entry.usage))
        elif entry.role == "toolResult" and isinstance(entry.message.get("toolCallId"), str):
            notes.results.add(entry.message["toolCallId"])


class _DerivedEvents:
    """Derives the events of one transcript. `skills` are the names of the skills its agent has."""

    def __init__(self, skills: frozenset[str]) -> None:
        self._skills = skills
        self._texts = SessionTexts()
        self._read: set[str] = set()
        self._open: dict[str, _AnswerEvidence] = {}

    def add(self, entry: Entry, at: datetime, answer: Answer, events: Iterable[Json] | None) -> None:
        """Add an entry of an answer and its raw events. `events` is None for an entry that counts in another session."""
        open_answer = self._open.get(answer.key)
        if open_answer is None:
            question = unwrap(answer.question.text).text
            evidence = ExchangeEvidence(question, self._texts, skills=self._skills, read=self._read)
            open_answer = self._open[answer.key] = _AnswerEvidence(evidence, entry.id, at)
        open_answer.at = at
        if events is None:
            open_answer.evidence.add_text(entry.text)
        elif entry.role == "assistant" and not entry.is_mirror:
            _add_message(open_answer.evidence, entry, events)
        elif entry.role == "toolResult":
            for output in events:
                if output["event"] == "tool_output":
                    open_answer.evidence.returned(output, f"{entry.id}.use")

    def over(self, answer: Answer) -> Iterator[tuple[Json, datetime]]:
        """Yield the events of an answer that is over, with ids and times."""
        open_answer = self._open.pop(answer.key, None)
        if open_answer is None:
            return
        events = open_answer.evidence.over() if answer.fold.has_ended and answer.fold.text.strip() else []
        open_answer.evidence.hand_over()
        for index, event in enumerate(events):
            # No entry's event can have such an id: what follows the point of an entry's id is a number.
            event.setdefault("event_id", f"{open_answer.anchor}.skill-{index}")
            yield event, open_answer.at


class _AnswerEvidence(msgspec.Struct, gc=False):
    """An answer that is not over: its evidence so far, the entry id for its events, and the time of its last entry."""

    evidence: ExchangeEvidence
    anchor: str
    at: datetime


def _add_message(evidence: ExchangeEvidence, entry: Entry, events: Iterable[Json]) -> None:
    for block in entry.blocks:
        kind = block.get("type")
        if kind == "text" or kind == "thinking":  # noqa: PLR1714 - it may be no text
            text = block.get(kind)
            if isinstance(text, str):
                evidence.add_text(text)
    if entry.calls:
        for call in events:
            if call["event"] == "tool_call":
                evidence.called(call)


def _duplicate_problem(entry: Entry) -> Problem:
    return Problem("duplicate_id", f"id: {entry.id[:64]!r} belongs to an earlier entry")


def _is_same(kept: bytes, content: bytes) -> bool:
    """Return whether two entries with the same id have the same content, given the kept line or digest of each."""
    return kept == content or _content_digest(kept) == _content_digest(content)


def _content_digest(kept: bytes) -> bytes:
    """Return the digest of a kept line; a kept digest unchanged. No line is as short as a digest."""
    return kept if len(kept) == _DIGEST_SIZE else _digest(content_of(kept))


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=_DIGEST_SIZE).digest()


def _run_id_of(entry: Entry) -> str | None:
    """Return the id of the run that wrote a message; None if the message has none."""
    own = entry.message.get("__openclaw")
    run = own.get("runId") if isinstance(own, dict) else None
    return run if isinstance(run, str) else None
