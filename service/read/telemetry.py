"""Telemetry: open sessions with the time since their last sign of life, unused spans of the last day by reason, and alerts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from typing import Annotated, Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Meta

from analytics.queries import query_rows
from audit.policy import Policy
from audit.silence import Level, Silence, Status, silence
from schemas.bounds import CLOCK_TOLERANCE
from schemas.lazy import duckdb
from service.text.answers import Answer, Moment, NextCursor
from streams.engine.record_intake import RecordIntake
from streams.sources.otlp.trace_records import (
    EVALUATION,
    HELPER,
    NO_CONTENT,
    NOT_A_MODEL_CALL,
    REPEATED,
    RETRIEVAL,
    STATES,
    UNKNOWN_KIND,
)

_LISTENING: WeakKeyDictionary[RecordIntake, datetime] = WeakKeyDictionary()
_MILLISECOND = timedelta(milliseconds=1)
Page = tuple[datetime, str]


class OpenSession(Answer, frozen=True):
    """An open session."""

    session_id: str
    project: str
    status: Annotated[
        Status,
        Meta(
            description="green: silent for at most one interval; yellow: at most three; red: longer. Green while the session waits for its user."
        ),
    ]
    last_received: Annotated[Moment, Meta(description="Time of its last heartbeat or record.")]
    missed_intervals: int
    elapsed_ms: Annotated[int, Meta(description="Milliseconds of silence while this server was running.")]
    interval_ms: Annotated[int, Meta(description="Milliseconds within which the policy expects a heartbeat or record.")]
    connection: str

    @property
    def level(self) -> Level | None:
        """The urgency of its silence; None if no sign of life is overdue."""
        return Silence(timedelta(milliseconds=self.elapsed_ms), self.missed_intervals).level


class Telemetry(Answer, frozen=True):
    """Open sessions, the longest silent first."""

    sessions: list[OpenSession]
    count: int
    next_cursor: NextCursor


class ListedSession(NamedTuple):
    """An open session, and its place in the list of all of them."""

    session: OpenSession
    place: str


def open_sessions(
    cursor: duckdb.DuckDBPyConnection,
    policy: Policy,
    now: datetime,
    listening: datetime | None,
    *,
    project: str | None = None,
    silent_since: datetime | None = None,
    after: Page | None = None,
    limit: int | None = None,
) -> list[ListedSession]:
    """Return a page of watched sessions of one project or all, longest silent first.

    Optionally only those last active before a time.
    """
    at, last_id = after or (None, None)
    values = {
        "as_of": now,
        "gap_seconds": timedelta(minutes=policy.session_gap_minutes).total_seconds(),
        "history_seconds": CLOCK_TOLERANCE.total_seconds(),
        "project": project,
        "silent_since": silent_since,
        "after_at": at,
        "after_place": last_id,
        "limit": limit,
    }
    return [
        ListedSession(_build_session(row, policy, now, listening), row["place"])
        for row in query_rows(cursor, "session_signs", values)
    ]


def _build_session(row: Mapping[str, Any], policy: Policy, now: datetime, listening: datetime | None) -> OpenSession:
    interval = policy.for_project(row["project"]).settings.heartbeat_interval
    quiet = silence(row["last_received"], listening, now, timedelta(milliseconds=interval), is_idle=row["is_idle"])
    return OpenSession.of(
        row,
        status=quiet.status,
        missed_intervals=quiet.missed,
        elapsed_ms=quiet.elapsed // _MILLISECOND,
        interval_ms=interval,
    )


def note_listening(engine: RecordIntake, since: datetime) -> None:
    """Record the time since which the server over this engine has been listening."""
    _LISTENING[engine] = since


def listening_of(engine: RecordIntake) -> datetime | None:
    """Return the time since which the server over this engine has listened without interruption; None without a watchdog."""
    return _LISTENING.get(engine)


WITHIN = timedelta(days=1)
"""The period covered: a problem that a sender has fixed disappears a day later."""


class _State(NamedTuple):
    """The words for a reason, for one span and for several, with advice if a user can do something about it."""

    one: str
    several: str
    advice: str = ""


WORDS: Mapping[str, _State] = {
    UNKNOWN_KIND: _State(
        "span was not understood",
        "spans were not understood",
        "Set a supported kind, such as gen_ai.operation.name = chat, or report the scope and the example so that support can be added.",
    ),
    NO_CONTENT: _State(
        "span had no texts",
        "spans had no texts",
        "Make the sender record texts: without them there are no exchanges to score.",
    ),
    HELPER: _State(
        "request beside the turn, such as an embedding or a title", "requests beside turns, such as embeddings or titles"
    ),
    EVALUATION: _State("span of an evaluation or experiment", "spans of evaluations and experiments"),
    REPEATED: _State("span that duplicates others", "spans that duplicate others"),
    RETRIEVAL: _State("retrieval", "retrievals"),
    NOT_A_MODEL_CALL: _State("span without a model, such as an HTTP call", "spans without a model, such as HTTP calls"),
}


class UnusedSpans(msgspec.Struct, frozen=True):
    """Spans of one connection and scope that share a reason. Scope and example are the sender's own text."""

    project: str
    connection: str
    state: str
    scope: str
    spans: int
    traces: int
    example: str
    trace_id: str
    last_at: datetime

    @property
    def needs_action(self) -> bool:
        """Whether data is lost that the sender could provide."""
        return bool(WORDS[self.state].advice)

    @property
    def words(self) -> str:
        """The number of spans, their scope and the reason: `312 spans of scope litellm were not understood`."""
        state = WORDS[self.state]
        subject, _, rest = (state.one if self.spans == 1 else state.several).partition(" ")
        return f"{self.spans:,} {subject} of {f'scope {self.scope}' if self.scope else 'no scope'} {rest}"

    @property
    def advice(self) -> str:
        """Advice for the user."""
        return WORDS[self.state].advice


def read_unused_spans(cursor: duckdb.DuckDBPyConnection, now: datetime, connection: str | None = None) -> list[UnusedSpans]:
    """Return the unused spans of the last day, of one connection or all; those that need action come first."""
    rows = query_rows(cursor, "unused_spans", {"project": None, "connection": connection, "since": now - WITHIN})
    return msgspec.convert(rows, list[UnusedSpans])


def count_by_state(unused: Iterable[UnusedSpans]) -> dict[str, int]:
    """Return the number of spans of each state, 0 for states without spans."""
    counts = dict.fromkeys(STATES, 0)
    for group in unused:
        counts[group.state] += group.spans
    return counts


def sum_up_expected(unused: Iterable[UnusedSpans]) -> str:
    """Describe the number of spans left out on purpose, by kind; empty if there are none."""
    counts = count_by_state(group for group in unused if not group.needs_action)
    return "; ".join(
        f"{count:,} {WORDS[state].one if count == 1 else WORDS[state].several}" for state, count in counts.items() if count
    )


AlertStatus = Literal["waiting", "delivered", "given_up"]


class AlertDelivery(Answer, frozen=True):
    """An alert, and the state of its delivery."""

    id: Annotated[str, Meta(description="The same for the same cause and channel.")]
    channel: Annotated[str, Meta(description="Name of the receiver.")]
    kind: Literal["incident", "resolved", "telemetry", "judge", "cost_cap", "tool"]
    subject: Annotated[str, Meta(description="Id of the incident, connection and id of the session, or the model that judges.")]
    project: str | None
    severity: Literal["warning", "critical"]
    status: AlertStatus
    created_at: Moment
    not_before: Annotated[
        Moment, Meta(description="Time of the next attempt, or of the last one. Quiet hours and failures delay it.")
    ]
    attempts: int
    settled_at: Annotated[Moment | None, Meta(description="When it was delivered or given up.")]
    last_error: Annotated[str | None, Meta(description="Why the last attempt failed.", examples=["the answer was 503"])]


class AlertReceiver(Answer, frozen=True):
    """A receiver of alerts, without its address."""

    name: str
    type: str
    projects: Annotated[list[str], Meta(description="Names and patterns.")]
    alert_from: Annotated[
        Literal["warning", "critical"] | None, Meta(description="The lowest severity; null is that of each project's policy.")
    ]
    alert_on_suspected: Annotated[
        bool | None, Meta(description="Whether it gets suspected incidents; null is as in each project's policy.")
    ]


class TriedReceiver(Answer, frozen=True):
    """The outcome of a test message."""

    receiver: str
    delivered: bool
    error: Annotated[str | None, Meta(examples=["the answer was 403: invalid_token"])]


class TriedReceivers(Answer, frozen=True):
    """The outcomes of test messages."""

    receivers: list[TriedReceiver]


class AlertList(Answer, frozen=True):
    """Alerts, newest first."""

    alerts: list[AlertDelivery]
    count: int
    next_cursor: NextCursor


def alert_deliveries(
    cursor: duckdb.DuckDBPyConnection,
    limit: int,
    *,
    status: str | None = None,
    project: str | None = None,
    before: tuple[datetime, str] | None = None,
) -> list[AlertDelivery]:
    """Return a page of alerts, newest first, of a status and of one project or all."""
    at, alert_id = before or (None, None)
    values = {"status": status, "project": project, "before_at": at, "before_id": alert_id, "limit": limit}
    return [
        AlertDelivery.of(row, id=row["alert_id"], subject=row["subject_id"]) for row in query_rows(cursor, "alerts", values)
    ]
