"""The diagnosis stage: it folds the events of each session as they arrive, and diagnoses the session at its end.

A session ends with a `session_end` event or with a `SessionClosed` record. It may continue afterwards; its next end then gives a
diagnosis of all of its events, with the next revision. An end without new events gives no diagnosis.

The diagnosis of a session without events, which has only exchanges (`streams.upkeep.closing`), has no trust score and the verdict
`insufficient_evidence`. If the session ends again, the next revision has the new time. Once events arrive, the next revision is the
diagnosis of these events, as if there had been no earlier end.
"""

from __future__ import annotations

import functools
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping
from datetime import UTC, datetime, timedelta
from itertools import repeat
from typing import NamedTuple

import msgspec

from audit.detectors.thresholds import MIN_SATURATION, TRANSCRIPT_SOURCES, Profile, profile_name
from audit.diagnosis.diagnosis import EVIDENCE_REFERENCES, diagnose, to_record
from audit.diagnosis.evidence import FAILED_SKILL, FOLD_COLUMNS, LOST_MEMORY, Row, SessionEvidence, fold_counted
from audit.policy import Policy
from schemas.codec.arrow import rows_as_records
from schemas.lazy import pl
from schemas.records import Diagnosis, SessionClosed
from streams.stage_batches import KEY, OFFSET, StageBatch, StepOutcome

SESSION_END = "session_end"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
CALL_COLUMNS = frozenset(FOLD_COLUMNS) - {"action", "status", "used", "referenced", "invoked", "saturation", "payload"}
OTHER_COLUMNS = frozenset(FOLD_COLUMNS) - {"payload"}


class DiagnosisState(msgspec.Struct, omit_defaults=True):
    """The state of one session in the stage. Times are microseconds since 1970, UTC."""

    connection: str
    session_id: str
    project: str
    agent: str | None
    evidence: SessionEvidence
    next_offset: int = 0
    started_us: int | None = None
    ended_us: int | None = None
    diagnoses: int = 0
    diagnosed_events: int = -1
    closed_us: int | None = None
    """The time of closing in the last diagnosis without events."""


class SessionEnd(NamedTuple):
    """The end of a session: its offset on the topic, and the reason."""

    offset: int
    key: str
    closed_at: datetime
    reason: str
    last_at: datetime | None = None
    """The time of the session's last activity, if the end has it."""


class DiagnosisStep:
    """The stage's step; see `streams.stage_batches.Step`."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._decode = msgspec.msgpack.Decoder(DiagnosisState)

    def __call__(self, batch: StageBatch, states: Mapping[str, bytes]) -> StepOutcome:
        """Fold the batch's events and diagnose the sessions that end in the batch."""
        sessions = {key: self._decode.decode(state) for key, state in states.items()}
        batch = batch.unseen({key: session.next_offset for key, session in sessions.items()})
        _open_sessions(batch, sessions)
        self._set_new_thresholds(batch, sessions)
        outcome = StepOutcome()
        evidence = {key: session.evidence for key, session in sessions.items()}
        for events, ends in _split_at_ends(batch.frames.get("AgentEvent"), _find_ends(batch)):
            self._fold_events(sessions, evidence, events)
            for end in ends:
                diagnosis = self._close(sessions[end.key], end)
                if diagnosis is not None:
                    outcome.records.append(("diagnoses", diagnosis))
        for key, next_offset in batch.ends().items():
            sessions[key].next_offset = next_offset
        outcome.states = {key: msgspec.msgpack.encode(sessions[key]) for key in batch.keys()}  # noqa: SIM118 - a batch is not a dict
        return outcome

    def _set_new_thresholds(self, batch: StageBatch, sessions: Mapping[str, DiagnosisState]) -> None:
        """Set the thresholds of new sessions, and of sessions whose source, a transcript, first appears in this batch."""
        for session in sessions.values():
            if not session.evidence.event_counts:
                self._set_thresholds(session)
        frame = batch.frames.get("AgentEvent")
        if frame is None:
            return
        transcripts = frame.filter(pl.col("source").is_in(list(TRANSCRIPT_SOURCES))).group_by(KEY).agg(pl.col("source").first())
        for key, source in transcripts.iter_rows():
            session = sessions[key]
            if session.evidence.source is None:
                session.evidence.source = source
                self._set_thresholds(session)

    def _set_thresholds(self, session: DiagnosisState) -> None:
        session.evidence.hold_to(self._current_profile(session))

    def _current_profile(self, session: DiagnosisState) -> Profile:
        """Return the thresholds in force for the session's agent."""
        return self._select_profile(session, session.evidence.source)

    def _select_profile(self, session: DiagnosisState, source: str | None) -> Profile:
        detectors = self._policy.for_project(session.project).settings.detectors
        return detectors.profile(profile_name(source), session.agent)

    def _fold_events(
        self, sessions: Mapping[str, DiagnosisState], evidence: dict[str, SessionEvidence], events: pl.DataFrame | None
    ) -> None:
        """Fold events: count them by columns, and fold the rows that the detectors need one by one."""
        if events is None or not events.height:
            return
        occurred = pl.col("occurred_at").dt.epoch("us")
        summaries = events.group_by(KEY).agg(
            occurred.min().alias("first"), occurred.max().alias("last"), pl.col("agent").first().alias("agent")
        )
        for key, first, last, agent in summaries.iter_rows():
            session = sessions[key]
            session.started_us = first if session.started_us is None else min(session.started_us, first)
            session.ended_us = last if session.ended_us is None else max(session.ended_us, last)
            if session.agent != agent and not session.evidence.event_counts:
                # Until now the session had only ends, which name the agent of the exchanges.
                session.agent = agent
                self._set_thresholds(session)
        for key, event, count in events.group_by(KEY, "event", maintain_order=True).len().iter_rows():
            evidence[key].count_events(event, count)
        call_columns = CALL_COLUMNS
        if any(session_evidence.reads_payloads for session_evidence in evidence.values()):
            call_columns |= {"payload"}
        if any(session_evidence.tool_use is not None for session_evidence in evidence.values()):
            call_columns |= {"action", "status"}
        fold_counted(evidence, _iterate_rows(events.filter(_call_events_filter()), call_columns))
        fold_counted(evidence, _iterate_rows(events.filter(_other_events_filter()), OTHER_COLUMNS))

    def _close(self, session: DiagnosisState, end: SessionEnd) -> Diagnosis | None:
        """Return the diagnosis at this end of the session, or None if no event came since the last one."""
        events = session.evidence.event_count
        if not events:
            return self._close_without_events(session, end)
        if events == session.diagnosed_events:
            return None
        return self._build_diagnosis(session, end, session.evidence, self._current_profile(session))

    def _close_without_events(self, session: DiagnosisState, end: SessionEnd) -> Diagnosis | None:
        """Return the diagnosis of a session with only exchanges, or None if a diagnosis with this end or a later one exists."""
        closed_us = _to_microseconds(end.closed_at)
        if session.closed_us is not None and closed_us <= session.closed_us:
            return None
        session.closed_us = closed_us
        # The batch may hold the first events after this end: ignore them here.
        profile = self._select_profile(session, source=None)
        evidence = SessionEvidence.held_to(profile, EVIDENCE_REFERENCES)
        return self._build_diagnosis(session, end, evidence, profile)

    def _build_diagnosis(
        self, session: DiagnosisState, end: SessionEnd, evidence: SessionEvidence, profile: Profile
    ) -> Diagnosis:
        diagnosis = to_record(
            diagnose(evidence, profile.thresholds),
            evidence,
            connection=session.connection,
            project=session.project,
            agent=session.agent,
            session_id=session.session_id,
            revision=session.diagnoses,
            started_at=_to_datetime(session.started_us),
            ended_at=_to_datetime(session.ended_us) if evidence.event_counts else end.last_at,
            closed_at=end.closed_at,
            closed_reason=end.reason,
            policy_digest=self._policy.for_project(session.project).digest,
            profile=profile,
        )
        session.diagnoses += 1
        session.diagnosed_events = evidence.event_count
        return diagnosis


def _to_microseconds(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def _to_datetime(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else EPOCH + timedelta(microseconds=microseconds)


def _open_sessions(batch: StageBatch, sessions: dict[str, DiagnosisState]) -> None:
    """Give every new session of the batch a state. Its project and agent are those of its first record on the topic."""
    columns = ["connection", "session_id", "project", "agent"]
    selections = [frame.select(OFFSET, KEY, *columns) for frame in batch.frames.values()]
    if not selections:
        return
    first_records = pl.concat(selections).sort(OFFSET).group_by(KEY).agg(pl.col(columns).first())
    for key, connection, session_id, project, agent in first_records.iter_rows():
        if key not in sessions:
            evidence = SessionEvidence(reference_limit=EVIDENCE_REFERENCES)
            sessions[key] = DiagnosisState(connection, session_id, project, agent, evidence)


def _split_at_ends(
    events: pl.DataFrame | None, ends: list[SessionEnd]
) -> Iterator[tuple[pl.DataFrame | None, list[SessionEnd]]]:
    """Yield the events in parts, each with the sessions that end after the part.

    Sessions are independent, so the batch is a single part unless a session continues after its end.
    """
    first_ends: dict[str, int] = {}
    for end in ends:
        first_ends.setdefault(end.key, end.offset)
    last_events: dict[str, int] = {}
    if events is not None and ends:
        last_events = dict(events.group_by(KEY).agg(pl.col(OFFSET).max()).iter_rows())
    if all(last_events.get(key, -1) <= offset for key, offset in first_ends.items()):
        yield events, ends
        return
    offsets = [] if events is None else events[OFFSET].to_list()
    start = 0
    for end in ends:
        stop = bisect_right(offsets, end.offset)
        yield None if events is None else events[start:stop], [end]
        start = stop
    yield None if events is None else events[start:], []


def _find_ends(batch: StageBatch) -> list[SessionEnd]:
    """Return the ends of sessions in the batch, in the order of the topic."""
    return sorted([*_find_event_ends(batch), *_find_closed_ends(batch)])


def _find_event_ends(batch: StageBatch) -> Iterator[SessionEnd]:
    frame = batch.frames.get("AgentEvent")
    if frame is not None:
        ends = frame.filter(pl.col("event") == SESSION_END).select(OFFSET, KEY, "occurred_at")
        for offset, key, occurred_at in ends.iter_rows():
            yield SessionEnd(offset, key, occurred_at, SESSION_END)


def _find_closed_ends(batch: StageBatch) -> Iterator[SessionEnd]:
    frame = batch.frames.get("SessionClosed")
    if frame is not None:
        for offset, key, record in zip(frame[OFFSET], frame[KEY], rows_as_records("SessionClosed", frame), strict=True):
            if isinstance(record, SessionClosed):
                yield SessionEnd(offset, key, record.closed_at, record.reason, record.last_at)


@functools.cache
def _call_events_filter() -> pl.Expr:
    """Return the condition for events that the fold needs all of. Approvals are among them: they count only before a call."""
    return pl.col("event").is_in(["tool_call", "token_usage", "approval", "tool_definitions"])


@functools.cache
def _other_events_filter() -> pl.Expr:
    """Return a prefilter for the other events that the fold may need; the fold checks them again."""
    return (
        (pl.col("event") == "retry_event")
        | ((pl.col("event") == "memory_event") & pl.any_horizontal(pl.col("action", "status").is_in(list(LOST_MEMORY))))
        | ((pl.col("event") == "tool_output") & (~pl.col("used") | ~pl.col("referenced") | (pl.col("status") == "ignored")))
        | ((pl.col("event") == "output_use") & ~pl.col("used"))
        | (
            (pl.col("event") == "context_event")
            & ((pl.col("saturation") >= MIN_SATURATION) | (pl.col("action") == "compaction"))
        )
        | ((pl.col("event") == "skill_event") & (~pl.col("invoked") | pl.col("status").is_in(list(FAILED_SKILL))))
    )


def _iterate_rows(events: pl.DataFrame, columns: Collection[str]) -> Iterator[Row]:
    """Return rows in the form that the fold needs. Columns that are not in `columns` are None."""
    return zip(
        *(events[KEY if name == "session" else name].to_list() if name in columns else repeat(None) for name in FOLD_COLUMNS),
        strict=False,
    )
