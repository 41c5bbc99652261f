"""Reads OpenClaw transcripts as exchanges and events, in one pass: lines → entries → tree → records.

1. Reading is pure: the same lines and context give the same records. When a file grows, the records of its earlier lines stay the same, with
   two exceptions. An exchange may become abandoned. An answer that ended by itself is final at once; if its turn continues, the exchange is
   among the `revisable` ones.
2. The id of an exchange is `<session id>:<entry id of the user message>`. A further answer to the same message adds
   `~<entry id of its first message>`. Separators within ids are escaped (`%3A`, `%7E`, and `%25` for `%`). The id of an event is
   `<entry id>`, or `<entry id>.<k>` if the entry has several events.
3. A repeated entry counts once. A different entry with the same id is a fault, and the first entry is kept. A session line counts only
   before all other entries. A torn last line ends the reading.
4. Evidence is derived when an answer is over: a user message follows, or nothing follows for longer than the session gap. It is never
   derived earlier, because an event cannot be withdrawn. Derived events precede those of the entry that ended the answer, wherever the file
   was cut between two readings.
5. The dialect of a program turns a decoded line into entries in OpenClaw's form, so that one reader serves all programs. A dialect remembers
   earlier lines, so each reading needs its own instance. Its result depends only on the line and the lines before it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from audit.diagnosis.duplicate_rules import read_digest
from schemas.bounds import MAX_ID
from schemas.errors import InputError
from schemas.records import Exchange
from streams.sources.copies import merge_copies
from streams.sources.derived_evidence import ExchangeEvidence, SessionFigures
from streams.sources.exchange_builder import ExchangeDraft, ExchangeSettings, build_exchange, pair_calls
from streams.sources.lines import Line, Problem, decode_line, is_linked, is_torn, line_fault, may_be_copy, read_lines
from streams.sources.openclaw.companions import (
    TRAJECTORY,
    SessionFacts,
    is_archived,
    read_facts_beside,
    read_header,
    read_trajectory,
    transcript_stem,
)
from streams.sources.openclaw.entry import TURN_END, Entry, canonical_content, has_bad_time, read_entry
from streams.sources.openclaw.events import SessionEvents, events_of, wrapped_calls
from streams.sources.openclaw.text import Unwrapped, answer_tags, question_tags, unwrap
from streams.sources.openclaw.trajectory import (
    Trajectory,
    TranscriptIndex,
    TranscriptMessage,
    build_run_events,
    build_skills_event,
)
from streams.sources.openclaw.tree import Answer, Placement, Tree, build_exchange_id, join_thinking
from streams.sources.source import LineFault, PendingAnswer, Reading, ReadingContext

Json = dict[str, Any]
MAX_KEPT_LINE_BYTES = 4096
"""Maximum size of a line that is kept while its transcript is read. Longer lines are kept as a digest."""
_DIGEST_SIZE = 16
EventSink = Callable[[Json, datetime], None]
"""Receives a raw event, with uncut texts, and its time."""
SOURCE = "openclaw"
"""The `source` of events from OpenClaw's own records."""


def find_transcripts(path: Path) -> list[Path]:
    """Return the transcripts at a path, sorted.

    The path of a file gives that file. A directory gives all `agents/<agent>/sessions/*.jsonl` below it, and all other `*.jsonl` files that
    start with a session line. Backups, and transcripts archived by a reset or deletion, are included. Symbolic links are not followed.
    `*.trajectory.jsonl` files have another format and are left out.

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
        is_named = file.suffix == ".jsonl" or is_archived(file.name)
        if (is_named and _is_in_sessions(file)) or _begins_with_session(file):
            transcripts.append(file)
    return sorted(transcripts)


def _may_be_transcript(name: str) -> bool:
    """Return whether a file with this name may be a transcript."""
    return not name.startswith(".") and TRAJECTORY not in name and (may_be_copy(name) or is_archived(name))


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
                session_id=transcript_stem(path.name)[:MAX_ID] or path.stem[:MAX_ID],
                agent=agent,
                is_abandoned=context.ingested_at - written > context.session_gap,
                facts=read_facts_beside(path, read_header(path)),
                trajectory=read_trajectory(path),
            )
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", hint="Check the path and its permissions.") from error


class Dialect(Protocol):
    """The format of one program's transcripts.

    `source` is the `source` of its events. `id_field` and `parent_field` name the fields with a line's id and its parent's id. `ends_turns`
    is True if entries of kind TURN_END mark the ends of turns. `derives` is True if the rules for derived evidence apply, because they were
    validated on transcripts of the program.
    """

    source: str
    id_field: str
    parent_field: str
    derives: bool
    ends_turns: bool

    def entries(self, line: Line, body: Json) -> Sequence[Entry | Problem] | Problem:
        """Return the entries of a line, possibly none, and the problems of its parts.

        A single Problem means that the line has no entry. Its children are then placed where the line was.
        """
        ...

    def events(self, entry: Entry, *, is_retry: bool, wrapped: Mapping[str, str]) -> list[Json]:
        """Return the events of an entry, in order and without ids."""
        ...

    def unwrap(self, text: str) -> Unwrapped:
        """Return a user's message without the program's wrapping."""
        ...

    def tags(self, question: str, response: str) -> set[str]:
        """Return the tags that follow from the texts of an exchange."""
        ...


class OpenClawDialect:
    """OpenClaw's own dialect: each line is one entry."""

    source = SOURCE
    id_field = "id"
    parent_field = "parentId"
    derives = True
    ends_turns = False

    def entries(self, line: Line, body: Json) -> Sequence[Entry | Problem] | Problem:
        """Return the line as an entry."""
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
"""The dialect has no state, so all readings share it."""


def read_session(
    lines: Iterable[Line],
    context: ReadingContext,
    *,
    session_id: str,
    agent: str | None,
    follows_header: bool = True,
    is_abandoned: bool = False,
    facts: SessionFacts = SessionFacts(),  # noqa: B008 - it is immutable
    trajectory: Trajectory | None = None,
    dialect: Dialect = OPENCLAW,
) -> Reading:
    """Return the records of one session's lines.

    `session_id` and `agent` are defaults. A leading session line overrides `session_id` unless `follows_header` is False. The context may
    override `agent`. `is_abandoned` is True if nothing was written for longer than the session gap, so that a torn line will never be
    completed. `facts` come from outside the lines of the session. `trajectory` is the separate record of its runs.
    """
    trajectory = Trajectory() if trajectory is None else trajectory
    transcript_index = TranscriptIndex() if trajectory.runs else None
    builder = _RecordBuilder(context, context.agent or agent, facts, dialect)
    transcript = Transcript(
        context,
        session_id=session_id,
        sink=builder.events.add,
        follows_header=follows_header,
        inherited=facts.inherited,
        skills=_read_skill_names(facts, trajectory),
        dialect=dialect,
        transcript_index=transcript_index,
    )
    builder.transcript = transcript
    transcript.read(lines)
    runs_are_complete = True
    if transcript_index is not None:
        runs_are_complete = _emit_runs(transcript, transcript_index, trajectory, facts, context)
    _emit_skills(transcript, trajectory, facts)
    answers = _classify_answers(transcript, context, is_abandoned=is_abandoned)
    abandoned_keys = transcript.tree.abandoned_keys()
    is_settled = runs_are_complete and not trajectory.is_torn
    return Reading(
        exchanges=[builder.build_exchange(answer, is_abandoned=answer.key in abandoned_keys) for answer in answers.final],
        events=builder.events.records(transcript.session_id),
        faults=transcript.faults + trajectory.faults,
        complete=not transcript.is_torn and not answers.may_change and (is_settled or is_abandoned),
        session_ids=[transcript.session_id],
        open=[_describe_pending(answer, transcript, context) for answer in answers.pending],
        revisable=frozenset(transcript.exchange_id(answer) for answer in answers.final if answer.was_continued),
    )


class _Answers(NamedTuple):
    """The answers of a session: the final ones, those that are not final yet, and whether any of them may still change."""

    final: list[Answer]
    pending: list[Answer]
    may_change: bool


def _classify_answers(transcript: Transcript, context: ReadingContext, *, is_abandoned: bool) -> _Answers:
    """Return the session's own answers. If the session is idle, end it first, so that all of them are final."""
    tree = transcript.tree
    # If a line is still being written, silence does not end the answer that it belongs to.
    is_idle = tree.is_idle(context.ingested_at) and (is_abandoned or not transcript.is_torn)
    if is_idle:
        transcript.end()
    final: list[Answer] = []
    pending: list[Answer] = []
    may_change = False
    for answer in tree.answers:
        if answer.key not in transcript.own_answer_keys:
            continue
        is_over = answer.is_sealed or is_idle
        may_change = may_change or not is_over
        if is_over or tree.is_final(answer):
            final.append(answer)
        else:
            pending.append(answer)
    return _Answers(final, pending, may_change)


class _RecordBuilder:
    """Builds the records of a transcript: redacts first, then cuts, then fills the fields."""

    transcript: Transcript

    def __init__(self, context: ReadingContext, agent: str | None, facts: SessionFacts, dialect: Dialect) -> None:
        self.events = SessionEvents(context, agent)
        self._facts = facts
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

    @cached_property
    def _calls(self) -> Mapping[str, Sequence[Json]]:
        """The events of tool calls by exchange, once the transcript is read."""
        return self.events.calls_by_exchange()

    def build_exchange(self, answer: Answer, *, is_abandoned: bool) -> Exchange:
        """Return the exchange of an answer."""
        draft = self._build_draft(answer, is_abandoned=is_abandoned)
        return build_exchange(
            draft, self._settings, lambda texts: read_digest(texts.question, texts.answer, texts.thinking, draft.at)
        )

    def _build_draft(self, answer: Answer, *, is_abandoned: bool) -> ExchangeDraft:
        question = answer.question
        state = answer.state
        tags = self._facts.tags
        # A subagent works beside the conversation, so the conversation never returns to it.
        if is_abandoned and question.origin != "subagent":
            tags |= {"abandoned"}
        if question.origin:
            tags |= {question.origin}
        if state.is_mirrored:
            tags |= {"delivery_mirror"}
        return ExchangeDraft(
            exchange_id=self.transcript.exchange_id(answer),
            session_id=self.transcript.session_id,
            at=answer.at,
            question=question.text,
            answer=state.text,
            outcome=state.outcome,
            thinking=None if state.thinking is None else join_thinking(state),
            turn_number=question.turn,
            model=state.model,
            input_tokens=state.input_tokens,
            output_tokens=state.output_tokens,
            stop_reason=state.stop,
            multi_user=self._facts.multi_user,
            tags=tags,
            tool_calls=pair_calls(self._calls.get(self.transcript.exchange_id(answer), ())),
        )


def _read_skill_names(facts: SessionFacts, trajectory: Trajectory) -> frozenset[str]:
    """Return the names of the skills that the session's agent is known to have."""
    names = set(facts.skills)
    for run in trajectory.runs.values():
        names.update(run.skills or ())
    return frozenset(names)


def _emit_runs(
    transcript: Transcript,
    transcript_index: TranscriptIndex,
    trajectory: Trajectory,
    facts: SessionFacts,
    context: ReadingContext,
) -> bool:
    """Emit the events that only the trajectory has. Return whether all runs are settled."""
    settled = list(trajectory.settled_runs(context.ingested_at, context.session_gap))
    starts = sorted(run.started_at for run in trajectory.runs.values() if run.started_at is not None)
    for run in settled:
        next_index = bisect_right(starts, run.last_at) if run.last_at is not None else len(starts)
        next_start = starts[next_index] if next_index < len(starts) else None
        for event, at in build_run_events(run, transcript_index, until=next_start, context_window=facts.context_window):
            transcript.emit(event, at)
    return len(settled) == len(trajectory.runs)


def _emit_skills(transcript: Transcript, trajectory: Trajectory, facts: SessionFacts) -> None:
    """Emit an event for each distinct list of skills that the runs had; for the session's list if no run has one."""
    if transcript.began_at is None:
        return
    lists = [tuple(run.skills) for run in trajectory.runs.values() if run.skills]
    if not lists and facts.skills:
        lists = [facts.skills]
    for names in dict.fromkeys(lists):
        # The event has the time of the session, because OpenClaw drops the first runs of long sessions.
        transcript.emit(build_skills_event(names), transcript.began_at)


def _describe_pending(answer: Answer, transcript: Transcript, context: ReadingContext) -> PendingAnswer:
    reason = "its last line is still being written" if transcript.is_torn else answer.pending_reason
    final_at = (answer.last_at or answer.at) + context.session_gap
    return PendingAnswer(transcript.session_id, transcript.exchange_id(answer), answer.at, reason, final_at)


class Transcript:
    """The state of one transcript while its lines are read. A session line before all other entries may change `session_id`.

    `inherited` are the ids of entries copied from another session. They count in the session where they were written, and are only used to
    place other entries. `began_at` is the time of the first entry with a time. `own_answer_keys` are the keys of the answers that have an
    entry of this session.
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
        transcript_index: TranscriptIndex | None = None,
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
        self._wrapped_tools: dict[str, str] = {}
        self._index = transcript_index
        if transcript_index is not None:
            transcript_index.wrapped = self._wrapped_tools
        self._derived_events = _DerivedEvents(skills)
        self._content_by_id: dict[str, bytes] = {}
        self.began_at: datetime | None = None
        self._last_at = context.ingested_at

    def read(self, lines: Iterable[Line]) -> None:
        """Read all lines, up to a torn last one."""
        for line in lines:
            value = decode_line(line)
            if isinstance(value, Problem):
                if is_torn(line, value):
                    self.is_torn = True
                    return
                self._reject_line(line, value, None)
                continue
            entries = self._dialect.entries(line, value)
            if isinstance(entries, Problem):
                self._reject_line(line, entries, value.get(self._dialect.id_field))
                continue
            for entry in entries:
                problem = entry if isinstance(entry, Problem) else self._add_entry(entry, line)
                if problem is not None:
                    self.faults.append(line_fault(line, problem))

    def _reject_line(self, line: Line, problem: Problem, entry_id: object) -> None:
        """Record a line that has no entry."""
        self.tree.add_damaged(entry_id)
        self.faults.append(line_fault(line, problem))

    def _add_entry(self, entry: Entry, line: Line) -> Problem | None:
        """Add an entry. Return its problem, if it has one; the entry may have been added nevertheless."""
        content = self._identify_content(entry, line)
        earlier_content = self._content_by_id.get(entry.id)
        if earlier_content is not None:
            return None if _is_same_content(earlier_content, content) else _build_duplicate_problem(entry)
        self._content_by_id[entry.id] = content
        if self.began_at is None:
            self.began_at = entry.at
        if entry.kind == "session":
            return self._read_header(entry)
        self._follows_header = False
        at = entry.at or self._last_at
        self._last_at = at
        placement = self.tree.add(entry, at)
        if entry.calls:
            self._wrapped_tools |= wrapped_calls(entry)
        if self._index is not None:
            self._index_message(self._index, entry, at, placement.answer)
        for sealed_answer in self.tree.take_newly_sealed():
            self._emit_derived(sealed_answer)
        if entry.kind == TURN_END:
            return None
        if entry.is_copy or entry.id in self._inherited:
            self._derive_from(entry, at, placement.answer, None)
            return None
        self._emit_events(entry, at, placement)
        if entry.at is None and placement.problem is None and has_bad_time(entry):
            return Problem("bad_timestamp", "timestamp: is not a time in the years 2000 to 2099; the previous entry's is used")
        return None if placement.problem is None else self._rename_field(placement.problem)

    def _derive_from(self, entry: Entry, at: datetime, answer: Answer | None, events: list[Json] | None) -> None:
        """Pass an entry and its events to the evidence rules, if they apply and its answer may still grow."""
        if self._dialect.derives and answer is not None and not answer.is_sealed:
            self._derived_events.add(entry, at, answer, events)

    def _emit_events(self, entry: Entry, at: datetime, placement: Placement) -> None:
        """Emit the events of an entry of this session, and pass them to the evidence rules."""
        answer = placement.answer
        events = self._dialect.events(entry, is_retry=placement.is_retry, wrapped=self._wrapped_tools)
        if answer is not None:
            self.own_answer_keys.add(answer.key)
            self._derive_from(entry, at, answer, events)
        if events:
            self._emit(entry, at, events, answer=answer)

    def _identify_content(self, entry: Entry, line: Line) -> bytes:
        """Return the bytes that distinguish an entry from others with the same id.

        A short line is returned whole: keeping it is cheaper than a digest, because few lines are ever compared.
        """
        if entry.digest is not None:
            return entry.digest
        return line.body if line.size <= MAX_KEPT_LINE_BYTES else _digest(canonical_content(line.body))

    def _rename_field(self, problem: Problem) -> Problem:
        """Return the problem with the dialect's name for the parent field instead of OpenClaw's."""
        if self._dialect.parent_field == "parentId":
            return problem
        return problem._replace(detail=problem.detail.replace("parentId:", f"{self._dialect.parent_field}:", 1))

    def _read_header(self, entry: Entry) -> Problem | None:
        self._last_at = entry.at or self._last_at
        if self._follows_header:
            self.session_id = entry.id
            self._follows_header = False
        elif entry.id != self.session_id:
            detail = f"id: the transcript belongs to session {self.session_id[:64]!r}; this line is ignored"
            return Problem("second_session", detail)
        return None

    def end(self) -> None:
        """End the transcript: emit the derived events of the answers that were still open."""
        for answer in self.tree.answers:
            if not answer.is_sealed:
                self._emit_derived(answer)

    def _emit_derived(self, answer: Answer) -> None:
        for event, at in self._derived_events.take_events(answer):
            if answer.key in self.own_answer_keys:
                event["exchange_id"] = self.exchange_id(answer)
                self.emit(event, at)

    def exchange_id(self, answer: Answer) -> str:
        """Return the id of an answer's exchange. The session's id is final before the first entry is added."""
        if not answer.exchange_id:
            answer.exchange_id = build_exchange_id(self.session_id, answer.key)
        return answer.exchange_id

    def _emit(self, entry: Entry, at: datetime, events: list[Json], *, answer: Answer | None) -> None:
        # An id that contains a dot always gets a number, so that the events of two entries cannot have the same id.
        is_numbered = len(events) > 1 or "." in entry.id
        exchange_id = None if answer is None else self.exchange_id(answer)
        for index, event in enumerate(events):
            event["entry_id"] = entry.id
            if exchange_id is not None:
                event["exchange_id"] = exchange_id
            event["event_id"] = f"{entry.id}.{index}" if is_numbered else entry.id
            self.emit(event, at)

    def emit(self, event: Json, at: datetime) -> None:
        """Emit one event of the session."""
        event["source"] = self._dialect.source
        event["timestamp"] = at.isoformat()
        self._sink(event, at)

    def _index_message(self, index: TranscriptIndex, entry: Entry, at: datetime, answer: Answer | None) -> None:
        """Index the calls, results and messages that the trajectory may repeat."""
        if entry.role == "assistant":
            index.calls.update(block["id"] for block in entry.calls if isinstance(block.get("id"), str))
            if not entry.is_mirror:
                exchange_id = None if answer is None else self.exchange_id(answer)
                index.add(TranscriptMessage(at, _read_run_id(entry), exchange_id, entry.stop, entry.usage))
        elif entry.role == "toolResult" and isinstance(entry.message.get("toolCallId"), str):
            index.results.add(entry.message["toolCallId"])


class _DerivedEvents:
    """Derives the events of one transcript. `skills` are the names of the agent's skills."""

    def __init__(self, skills: frozenset[str]) -> None:
        self._skills = skills
        self._session_figures = SessionFigures()
        self._read_skills: set[str] = set()
        self._evidence_by_key: dict[str, _AnswerEvidence] = {}

    def add(self, entry: Entry, at: datetime, answer: Answer, events: Iterable[Json] | None) -> None:
        """Add an entry of an answer with its raw events. `events` is None for an entry that counts in another session."""
        collected = self._evidence_by_key.get(answer.key)
        if collected is None:
            question = unwrap(answer.question.text).text
            evidence = ExchangeEvidence(question, self._session_figures, skills=self._skills, read_skills=self._read_skills)
            collected = _AnswerEvidence(evidence, entry.id, at)
            self._evidence_by_key[answer.key] = collected
        collected.last_at = at
        if events is None:
            collected.evidence.add_text(entry.text)
        elif entry.role == "assistant" and not entry.is_mirror:
            _add_message(collected.evidence, entry, events)
        elif entry.role == "toolResult":
            for event in events:
                if event["event"] == "tool_output":
                    collected.evidence.add_output(event, f"{entry.id}.use")

    def take_events(self, answer: Answer) -> Iterator[tuple[Json, datetime]]:
        """Yield the derived events of an answer that is over, with ids and times. Each answer is taken once."""
        collected = self._evidence_by_key.pop(answer.key, None)
        if collected is None:
            return
        is_answered = answer.state.has_ended and bool(answer.state.text.strip())
        events = collected.evidence.derive_events() if is_answered else []
        collected.evidence.add_to_session()
        for index, event in enumerate(events):
            # This id is unique: the suffix of an entry's own events is a number.
            event.setdefault("event_id", f"{collected.first_entry_id}.skill-{index}")
            yield event, collected.last_at


class _AnswerEvidence(msgspec.Struct, gc=False):
    """The evidence of an answer so far, the id of its first entry, and the time of its last entry."""

    evidence: ExchangeEvidence
    first_entry_id: str
    last_at: datetime


def _add_message(evidence: ExchangeEvidence, entry: Entry, events: Iterable[Json]) -> None:
    """Add the texts, thoughts and tool calls of an assistant message."""
    for block in entry.blocks:
        kind = block.get("type")
        if kind == "text" or kind == "thinking":  # noqa: PLR1714 - the kind may be unhashable
            text = block.get(kind)
            if isinstance(text, str):
                evidence.add_text(text)
    for event in events:
        if event["event"] == "tool_call":
            evidence.add_call(event)


def _build_duplicate_problem(entry: Entry) -> Problem:
    return Problem("duplicate_id", f"id: {entry.id[:64]!r} belongs to an earlier entry")


def _is_same_content(first: bytes, second: bytes) -> bool:
    """Return whether two entries with the same id have the same content. Each is given by its line or by a digest."""
    return first == second or _digest_content(first) == _digest_content(second)


def _digest_content(content: bytes) -> bytes:
    """Return the digest of a line; a digest is returned unchanged. No valid line is as short as a digest."""
    return content if len(content) == _DIGEST_SIZE else _digest(canonical_content(content))


def _digest(content: bytes) -> bytes:
    return blake2b(content, digest_size=_DIGEST_SIZE).digest()


def _read_run_id(entry: Entry) -> str | None:
    """Return the id of the run that wrote a message; None if the message names none."""
    metadata = entry.message.get("__openclaw")
    run_id = metadata.get("runId") if isinstance(metadata, dict) else None
    return run_id if isinstance(run_id, str) else None
