"""OpenClaw transcripts as exchanges and events: lines → entries → tree → records, in one pass.

The path from lines to records is pure: the same lines and context give the same records. What was handed out for the first
lines of a file is handed out unchanged for all of it, except that an exchange may have become abandoned since, and that an answer that
ended by itself counts at once: if its turn goes on after all, its exchange is among the `revisable` ones.

Identity: an exchange is `<session id>:<entry id of the user message>`, a further answer to the same message
`…~<entry id of its first message>`. What stands between the parts is escaped within them (`%3A`, `%7E`, and `%25` for `%`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from audit.diagnosis.duplicate_rules import read_digest
from schemas.bounds.limits import MAX_ID
from schemas.errors import InputError
from schemas.records import Exchange
from streams.sources.copies import join_accounts
from streams.sources.dialects import OPENCLAW, Dialect
from streams.sources.exchange_builder import Filing, ToldExchange, build_exchange
from streams.sources.folders import is_linked, may_be_copy
from streams.sources.lines import Line, decode_line, read_lines
from streams.sources.openclaw.answer import Answer, outcome_of, thinking_text
from streams.sources.openclaw.companion_files import (
    TRAJECTORY,
    is_set_aside,
    read_header,
    read_trajectory,
    read_window,
    stem_of,
)
from streams.sources.openclaw.run_facts import Notes, events_of_run, skills_event
from streams.sources.openclaw.session_events import SessionEvents
from streams.sources.openclaw.storage.windows import Window
from streams.sources.openclaw.trajectory import Trajectory
from streams.sources.openclaw.transcript import Transcript
from streams.sources.source import OpenAnswer, Reading, ReadingContext

Json = dict[str, Any]


def find_transcripts(path: Path) -> list[Path]:
    """The transcripts at a path, sorted.

    That is the file itself, or all `agents/<agent>/sessions/*.jsonl` below a directory and the other `*.jsonl` files there
    that begin with a session line, those that a reset or a deletion put aside and backups among them. Symbolic links below the directory are not followed. `*.trajectory.jsonl` is OpenClaw's second
    account of a run, in another format, and no transcript.

    InputError when there is nothing at the path.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise InputError(f"{path}: does not exist", hint="Give a transcript or the directory that holds `agents/`.")
    found = []
    for file in path.rglob("*.jsonl*"):
        if not _may_be_transcript(file.name) or is_linked(file, path) or not file.is_file():
            continue
        is_named = file.suffix == ".jsonl" or is_set_aside(file.name)
        if (is_named and _is_in_sessions(file)) or _begins_with_session(file):
            found.append(file)
    return sorted(found)


def read_transcript(path: Path, context: ReadingContext) -> Reading:
    """Read one transcript; InputError when the file cannot be opened."""
    agent = path.resolve().parent.parent.name if _is_in_sessions(path) else None
    try:
        with path.open("rb") as stream:
            written = datetime.fromtimestamp(path.stat().st_mtime, UTC)
            return read_session(
                join_accounts(path, read_lines(stream), context.copies, OPENCLAW.id_field),
                context,
                session_id=stem_of(path.name)[:MAX_ID] or path.stem[:MAX_ID],
                agent=agent,
                is_left=context.ingested_at - written > context.session_gap,
                window=read_window(path, read_header(path)),
                trajectory=read_trajectory(path),
            )
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror})", hint="Check the path and its permissions.") from error


def read_session(
    lines: Iterable[Line],
    context: ReadingContext,
    *,
    session_id: str,
    agent: str | None,
    follows_header: bool = True,
    is_left: bool = False,
    window: Window = Window(),  # noqa: B008 - it cannot be changed
    trajectory: Trajectory | None = None,
    dialect: Dialect = OPENCLAW,
) -> Reading:
    """The records of one session's lines.

    `session_id` and `agent` are what the place of the lines says; a session line at the beginning overrides the first unless
    `follows_header` is off, the context overrides the second. `is_left` says that nothing was written there for longer than
    the session gap: what is torn then stays torn. `window` is what is known of the session beside its lines, `trajectory` the second
    account of its runs. `dialect` reads the lines.
    """
    builder = _Records(context, context.agent or agent, window, dialect)
    notes = Notes() if trajectory is not None and trajectory.runs else None
    transcript = Transcript(
        context,
        session_id=session_id,
        sink=builder.events.add,
        follows_header=follows_header,
        inherited=window.inherited,
        skills=_skills(window, trajectory),
        dialect=dialect,
        notes=notes,
    )
    builder.transcript = transcript
    transcript.read(lines)
    told = _tell(transcript, notes or Notes(), trajectory or Trajectory(), window, context)
    tree = transcript.tree
    # A line that is being written may be what an answer waits for: no silence ends it meanwhile.
    idle, abandoned = tree.is_idle(context.ingested_at) and (is_left or not transcript.is_torn), tree.abandoned()
    if idle:
        transcript.end()
    own = [answer for answer in tree.answers if answer.key in transcript.own_answers]
    pending = [answer for answer in own if not (answer.sealed or idle)]
    still_open = [answer for answer in pending if not answer.counts(ends_turns=dialect.ends_turns)]
    keys = {answer.key for answer in still_open}
    counted = [answer for answer in own if answer.key not in keys]
    return Reading(
        exchanges=builder.exchanges([(answer, answer.key in abandoned) for answer in counted]),
        events=builder.events.records(transcript.session_id),
        faults=transcript.faults + (trajectory.faults if trajectory is not None else []),
        complete=not transcript.is_torn and not pending and (told or is_left),
        session_ids=[transcript.session_id],
        open=[_open(answer, transcript, context) for answer in still_open],
        revisable=frozenset(transcript.exchange_id(answer) for answer in counted if answer.went_on),
    )


def _open(answer: Answer, transcript: Transcript, context: ReadingContext) -> OpenAnswer:
    reason = "its last line is still being written" if transcript.is_torn else answer.waits_for
    counts_at = (answer.last_at or answer.at) + context.session_gap
    return OpenAnswer(transcript.session_id, transcript.exchange_id(answer), answer.at, reason, counts_at)


def _skills(window: Window, trajectory: Trajectory | None) -> frozenset[str]:
    """The names of the skills that the session's agent is known to have."""
    runs = trajectory.runs.values() if trajectory is not None else ()
    return frozenset(window.skills).union(*(run.skills or () for run in runs))


def _tell(transcript: Transcript, notes: Notes, trajectory: Trajectory, window: Window, context: ReadingContext) -> bool:
    """Hand out what the second account of the runs adds; whether it was all there was."""
    runs = list(trajectory.settled(context.ingested_at, context.session_gap))
    begins = sorted(run.started_at for run in trajectory.runs.values() if run.started_at is not None)
    for run in runs:
        later = bisect_right(begins, run.last_at) if run.last_at is not None else len(begins)
        until = begins[later] if later < len(begins) else None
        for event, at in events_of_run(run, notes, until=until, fill=window.fill):
            transcript.emit(event, at)
    if transcript.began_at is not None:
        named = [tuple(run.skills) for run in trajectory.runs.values() if run.skills] or [window.skills]
        for names in dict.fromkeys(filter(None, named)):
            # The time is the session's: that of a run would change when OpenClaw forgets its first runs.
            transcript.emit(skills_event(names), transcript.began_at)
    return len(runs) == len(trajectory.runs) and not trajectory.is_torn


class _Records:
    """Builds records from what a transcript gives: takes secrets out, then cuts, then fills the fields."""

    transcript: Transcript

    def __init__(self, context: ReadingContext, agent: str | None, window: Window, dialect: Dialect) -> None:
        self.events = SessionEvents(context, agent)
        self._window = window
        self._context = context
        self._filing = Filing(
            connection=context.connection,
            project=context.project,
            ingested_at=context.ingested_at,
            redact=context.redactor.redact,
            agent=agent,
            unwrap=dialect.unwrap,
            tags=dialect.tags,
        )

    def exchanges(self, answers: Iterable[tuple[Answer, bool]]) -> list[Exchange]:
        """The exchanges of answers, each with whether it was abandoned."""
        return [self._exchange(self._told(answer, abandoned=abandoned)) for answer, abandoned in answers]

    def _exchange(self, told: ToldExchange) -> Exchange:
        return build_exchange(
            told, self._filing, lambda clean: read_digest(clean.question, clean.answer, clean.thinking, told.at)
        )

    def _told(self, answer: Answer, *, abandoned: bool) -> ToldExchange:
        question, fold = answer.question, answer.fold
        tags = self._window.tags
        # What a subagent does stands beside the conversation, which never comes back to it.
        if abandoned and question.origin != "subagent":
            tags |= {"abandoned"}
        if question.origin:
            tags |= {question.origin}
        text = fold.text
        if text is not fold.response:
            tags |= {"delivery_mirror"}
        return ToldExchange(
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


def _may_be_transcript(name: str) -> bool:
    """Tell whether a file may be a transcript by its name."""
    return not name.startswith(".") and TRAJECTORY not in name and (may_be_copy(name) or is_set_aside(name))


def _is_in_sessions(file: Path) -> bool:
    """Tell whether the file lies at `agents/<agent>/sessions/`."""
    parents = file.resolve().parents
    return len(parents) > 2 and parents[0].name == "sessions" and parents[2].name == "agents"


def _begins_with_session(file: Path) -> bool:
    """Tell whether the file's first line is that of a session.

    A file that cannot be read, or is gone meanwhile, has no such line.
    """
    try:
        with file.open("rb") as stream:
            first = next(read_lines(stream), None)
    except OSError:
        return False
    value = None if first is None else decode_line(first)
    return isinstance(value, dict) and value.get("type") == "session"
