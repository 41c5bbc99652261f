"""The diagnosis stage: folds the events of each session as they come and diagnoses it at its end.

A session ends with a `session_end` event or with a SessionClosed record. It may go on afterwards: the next end then gives a
diagnosis of everything so far, with the next revision. An end that brings no new event gives nothing.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

import msgspec
import polars as pl

from audit.diagnosis import diagnose
from audit.diagnosis_record import EVIDENCE_REFERENCES, to_record
from audit.evidence import FOLD_COLUMNS, Row, SessionEvidence, fold_columns
from audit.policy import Policy
from schemas.arrow import rows_as_records
from schemas.records import Diagnosis, SessionClosed
from streams.batches import KEY, OFFSET, StageBatch, StepOutcome

SESSION_END = "session_end"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class DiagnosisState(msgspec.Struct):
    """What the stage keeps of one session. Times are microseconds since 1970, UTC."""

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


class SessionEnd(NamedTuple):
    """Where in the topic a session ends, and why."""

    offset: int
    key: str
    closed_at: datetime
    reason: str


class DiagnosisStep:
    """The stage's step; see `streams.batches.Step`."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._decode = msgspec.msgpack.Decoder(DiagnosisState)

    def __call__(self, batch: StageBatch, states: Mapping[str, bytes]) -> StepOutcome:
        """Fold the batch's events and diagnose the sessions that end in it."""
        sessions = {key: self._decode.decode(state) for key, state in states.items()}
        batch = batch.unseen({key: session.next_offset for key, session in sessions.items()})
        _open_sessions(batch, sessions)
        outcome = StepOutcome()
        evidence = {key: session.evidence for key, session in sessions.items()}
        offsets, rows, times = _rows(batch)
        start = 0
        for end in _ends(batch):
            stop = bisect_right(offsets, end.offset)
            _fold(sessions, evidence, rows[start:stop], times[start:stop])
            start = stop
            diagnosis = self._close(sessions[end.key], end)
            if diagnosis is not None:
                outcome.records.append(("diagnoses", diagnosis))
        _fold(sessions, evidence, rows[start:], times[start:])
        for key, next_offset in batch.ends().items():
            sessions[key].next_offset = next_offset
        outcome.states = {key: msgspec.msgpack.encode(sessions[key]) for key in batch.keys()}  # noqa: SIM118 - a batch is no dict
        return outcome

    def _close(self, session: DiagnosisState, end: SessionEnd) -> Diagnosis | None:
        """The diagnosis at this end of the session, or None when nothing came since the last one."""
        events = session.evidence.event_count
        if events == session.diagnosed_events:
            return None
        diagnosis = to_record(
            diagnose(session.evidence),
            session.evidence,
            connection=session.connection,
            project=session.project,
            agent=session.agent,
            session_id=session.session_id,
            revision=session.diagnoses,
            started_at=_moment(session.started_us),
            ended_at=_moment(session.ended_us),
            closed_at=end.closed_at,
            closed_reason=end.reason,
            policy_digest=self._policy.for_project(session.project).digest,
        )
        session.diagnoses += 1
        session.diagnosed_events = events
        return diagnosis


def _moment(microseconds: int | None) -> datetime | None:
    return None if microseconds is None else EPOCH + timedelta(microseconds=microseconds)


def _open_sessions(batch: StageBatch, sessions: dict[str, DiagnosisState]) -> None:
    """Give every session of the batch a state; its project and agent are those of its first record, however batches fall."""
    named = ["connection", "session_id", "project", "agent"]
    places = [frame.select(OFFSET, KEY, *named) for frame in batch.frames.values()]
    if not places:
        return
    for key, connection, session_id, project, agent in (
        pl.concat(places).sort(OFFSET).group_by(KEY).agg(pl.col(named).first()).iter_rows()
    ):
        if key not in sessions:
            evidence = SessionEvidence(reference_limit=EVIDENCE_REFERENCES)
            sessions[key] = DiagnosisState(connection, session_id, project, agent, evidence)


def _rows(batch: StageBatch) -> tuple[list[int], list[Row], list[int]]:
    """Offsets, rows as the fold wants them, and event times in microseconds."""
    frame = batch.frames.get("AgentEvent")
    if frame is None:
        return [], [], []
    columns = [frame[KEY if name == "session" else name].to_list() for name in FOLD_COLUMNS]
    times = frame["occurred_at"].dt.epoch("us").to_list()
    return frame[OFFSET].to_list(), list(zip(*columns, strict=True)), times


def _ends(batch: StageBatch) -> list[SessionEnd]:
    """Every end of a session in the batch, in the order of the topic."""
    return sorted([*_told_ends(batch), *_recorded_ends(batch)])


def _told_ends(batch: StageBatch) -> Iterator[SessionEnd]:
    frame = batch.frames.get("AgentEvent")
    if frame is not None:
        ends = frame.filter(pl.col("event") == SESSION_END).select(OFFSET, KEY, "occurred_at")
        for offset, key, occurred_at in ends.iter_rows():
            yield SessionEnd(offset, key, occurred_at, SESSION_END)


def _recorded_ends(batch: StageBatch) -> Iterator[SessionEnd]:
    frame = batch.frames.get("SessionClosed")
    if frame is not None:
        for offset, key, record in zip(frame[OFFSET], frame[KEY], rows_as_records("SessionClosed", frame), strict=True):
            if isinstance(record, SessionClosed):
                yield SessionEnd(offset, key, record.closed_at, record.reason)


def _fold(
    sessions: Mapping[str, DiagnosisState], evidence: dict[str, SessionEvidence], rows: list[Row], times: list[int]
) -> None:
    fold_columns(evidence, rows)
    for row, time in zip(rows, times, strict=True):
        session = sessions[row[0]]
        if session.started_us is None or session.ended_us is None:
            session.started_us = session.ended_us = time
        elif time > session.ended_us:
            session.ended_us = time
        elif time < session.started_us:
            session.started_us = time
