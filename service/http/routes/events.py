"""Runtime events over HTTP: a batch of one session's events, or up to a thousand events of any sessions.

1. Sending a batch twice changes nothing. An event is identified by its event_id, or by its position in the session if the batch
   has a `first_seq`.
2. In bulk, each event has an event_id and the form of a line in an event file (`streams.sources.event_files`), so events can be
   sent again in other batches. Their positions follow the session's stored events, in the order of the call.
3. A rejected event becomes a dead letter with its bytes. It does not affect the other events.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

import msgspec
from anyio import to_thread
from fastapi import APIRouter
from pydantic import ValidationError

from analytics.identity.duplicate_matching import find_contradictions
from analytics.queries import query_rows
from audit.diagnosis.duplicate_rules import describe_differences
from audit.surrogates import json_bytes
from schemas.codec.single_object import decode
from schemas.errors import RecordError
from schemas.records import AgentEvent
from service.http.routes.ingest import Batch, agent_of, project_note, require_audit
from service.setup.access import Holder
from service.text.links import EVENTS, EVENTS_BULK
from service.web.authentication import Connection
from service.web.context import ApiContext, Services, durable_or_refused
from service.web.errors import ApiError, documented, problems_at
from service.web.json_routes import BatchRoute
from service.web.models import NO_MOMENT, BulkEvent, EventsBody, EventsInBulk
from service.write.outcomes import BulkEventOutcomes, EventOutcomes, RefusedBulkEvent, RefusedEvent, TakenEvent
from streams.engine.record_intake import PublishResult, RecordIntake
from streams.log.admission import DEAD_LETTERS, Admission, EncodedRecords, RecordOrigin, Refusal, encode_validated
from streams.log.log import KNOWN
from streams.sources.event_files import Owner, SessionEvents, find_event
from streams.sources.lines import Problem
from streams.sources.source import ReadingContext

router = APIRouter(route_class=BatchRoute, tags=["records"])
TOPIC = "agent-events"
CONFLICTING_ID = "conflicting_id"
_MAX_EXPLAINED_CONFLICTS = 10
"""Maximum number of conflicts per call whose differences are reported, because the log is searched for each."""


@dataclass
class EventBatch:
    """The result of reading a body: records with their indexes in it, and rejected events with their dead letters."""

    source: str
    first: int
    records: list[AgentEvent] = field(default_factory=list)
    indexes: list[int] = field(default_factory=list)
    refused: list[RefusedEvent] = field(default_factory=list)
    dead_letters: EncodedRecords = field(default_factory=EncodedRecords)

    def refuse(self, index: int, raw: Any, problem: Problem, admission: Admission) -> None:
        """Reject an event and add its dead letter."""
        self.refused.append(RefusedEvent(index=index, error=problem.detail))
        origin = RecordOrigin(self.source, self.first + index)
        refusal = Refusal("http", problem.reason, problem.detail)
        admission.add_dead_letter(self.dead_letters, origin, refusal, json_bytes(raw))


@router.post(EVENTS, status_code=201, responses=documented(400, 408, 413, 415))
async def take_events(body: EventsBody, caller: Connection, services: Services) -> EventOutcomes:
    """Accept a batch of runtime events of one session. They are durable once the request is answered."""
    engine = services.engine
    require_audit(engine, caller)
    if body.first_seq is None:
        require_own_ids(body.events)
    batch = await to_thread.run_sync(read_batch, body, caller, engine)
    async with services.turns.held([(caller.name, body.session_id)]):
        if body.first_seq is None and batch.records:
            batch.records = await assign_positions(services, caller, batch.records)
        with durable_or_refused():
            published = await engine.publish(TOPIC, batch.records)
    admission = Admission(engine.redactor, engine.now())
    for number, conflict in enumerate(published.conflicts):
        index = batch.indexes[conflict]
        differing = await differing_fields(services, number, batch.records[conflict])
        batch.refuse(index, body.events[index], _describe_conflict(body, index, differing), admission)
    await store_dead_letters(services, batch.dead_letters)
    refused = sorted(batch.refused, key=lambda event: event.index)
    services.metrics.events({"accepted": published.written, "known": published.known, "refused": len(refused)})
    note = project_note(body.project, caller)
    return EventOutcomes(accepted=published.written, known=published.known, refused=refused, **note)


async def differing_fields(services: ApiContext, number: int, record: AgentEvent) -> Sequence[str]:
    """Return the fields in which an event differs from the stored one.

    `number` counts the conflicts of a call from 0. For conflicts beyond `_MAX_EXPLAINED_CONFLICTS`, return no fields.
    """
    if number >= _MAX_EXPLAINED_CONFLICTS:
        return ()
    return await services.ask(partial(find_contradictions, topic=TOPIC, record=record))


async def store_dead_letters(services: ApiContext, dead_letters: EncodedRecords) -> None:
    """Store the dead letters of rejected events."""
    if messages := dead_letters.messages.get(DEAD_LETTERS):
        with durable_or_refused():
            await services.engine.publish(DEAD_LETTERS, [decode(message) for message in messages])


def require_own_ids(events: Sequence[Any]) -> None:
    """Raise an ApiError if an event of a batch without `first_seq` has no id, or the id of another event.

    Without ids, events that are sent again would be stored again.
    """
    used_ids: set[str] = set()
    for index, event in enumerate(events):
        if not isinstance(event, dict):
            continue  # `read_batch` rejects it
        event_id = own_id(event)
        if event_id is None:
            message = f"events[{index}].event_id: is missing; give each event its own id, or the batch its first_seq"
            raise ApiError(400, "invalid", message)
        if event_id in used_ids:
            message = f"events[{index}].event_id: is used by another event of the batch; make it unique, or send first_seq"
            raise ApiError(400, "invalid", message)
        used_ids.add(event_id)


def own_id(event: Mapping[str, Any]) -> str | None:
    """Return the id of an event; None if it has none or it is invalid."""
    event_id = event.get("event_id")
    if isinstance(event_id, bool) or not isinstance(event_id, str | int | float) or not str(event_id)[:1024].strip():
        return None
    return str(event_id)


def read_batch(body: EventsBody, caller: Holder, engine: RecordIntake) -> EventBatch:
    """Return the records of a body, without secrets. Positions count from `first_seq`, or from 0."""
    now = engine.now()
    gap = timedelta(minutes=engine.policy.session_gap_minutes)
    agent = agent_of(caller, body.agent, engine.redactor)
    owner = Owner(caller.name, caller.project or "", agent, body.session_id)
    context = ReadingContext(owner.connection, owner.project, agent, now, gap, engine.redactor)
    admission = Admission(engine.redactor, now)
    batch = EventBatch(f"http:{caller.name}/{body.session_id}", body.first_seq or 0)
    session = SessionEvents()
    session.skip(batch.first)
    for index, raw in enumerate(body.events):
        record = session.record(raw, f"events[{index}]", owner, context)
        problem = problem_of(record, f"events[{index}]")
        if problem is not None:
            batch.refuse(index, raw, problem, admission)
        elif isinstance(record, AgentEvent):
            batch.records.append(record)
            batch.indexes.append(index)
    return batch


def _describe_conflict(body: EventsBody, index: int, differing: Sequence[str]) -> Problem:
    """Describe the conflict of an event whose id or position is stored with other content."""
    if body.first_seq is None or own_id(body.events[index]) is not None:
        return Problem(CONFLICTING_ID, f"events[{index}].event_id: {other_content(differing)}")
    position = body.first_seq + index
    message = f"the log has another event at position {position} of the session (first_seq {body.first_seq})"
    return Problem(CONFLICTING_ID, f"events[{index}]: {message}")


def other_content(differing: Sequence[str]) -> str:
    """Describe a conflict to the sender. `differing` are the differing fields of the event."""
    return f"the log has an event with this id and other content{describe_differences(differing)}"


def problem_of(record: AgentEvent | Problem, path: str) -> Problem | None:
    """Return the reason why an event is rejected, if any. An invalid time may be a secret, so it is not repeated."""
    if isinstance(record, Problem):
        return record._replace(detail=f"{path}.timestamp: {NO_MOMENT}") if record.reason == "bad_timestamp" else record
    try:
        encode_validated(record)
    except RecordError as error:
        return Problem(error.code, f"{path}{str(error).removeprefix('AgentEvent')}")
    return None


async def assign_positions(services: ApiContext, caller: Holder, records: Sequence[AgentEvent]) -> list[AgentEvent]:
    """Return the records with positions that follow the stored events of their sessions."""
    sessions = [record.session_id for record in records]
    # Read pending events first: an event that is stored in between is then in both results, and otherwise could be in neither.
    pending = {session: services.engine.pending_events(caller.name, session) for session in set(sessions)}
    values = {"connection": caller.name, "sessions": sessions, "event_ids": [record.event_id for record in records]}
    rows = await services.ask(lambda cursor: query_rows(cursor, "session_positions", values))
    stored_ids = {(row["session_id"], event_id) for row in rows for event_id in row["known"]}
    positions = {row["session_id"]: row["next_seq"] for row in rows}
    for session_id, events in pending.items():
        stored_ids.update((session_id, event_id) for event_id in events)
        positions[session_id] = max(positions.get(session_id, 0), 1 + max(events.values(), default=-1))
    positioned = []
    for record in records:
        subject = record.session_id, record.event_id
        positioned.append(msgspec.structs.replace(record, seq=positions[record.session_id]))
        positions[record.session_id] += subject not in stored_ids
        stored_ids.add(subject)
    return positioned


_NO_ID = "is missing; give each event its own id"


@dataclass
class Bulk(Batch[AgentEvent, RefusedBulkEvent]):
    """A batch of events, with the dead letters of rejected events."""

    dead_letters: EncodedRecords = field(default_factory=EncodedRecords)

    def reject(
        self, caller: Holder, index: int, value: dict[str, Any], problem: Problem, admission: Admission
    ) -> RefusedBulkEvent:
        """Add the dead letter of an event, and return the answer to its sender."""
        origin = RecordOrigin(f"http:{caller.name}/{value['session_id']}", index)
        refusal = Refusal("http", problem.reason, problem.detail)
        event, _ = find_event(value)
        admission.add_dead_letter(self.dead_letters, origin, refusal, json_bytes(event))
        return RefusedBulkEvent(error=problem.detail, code="conflict" if problem.reason == CONFLICTING_ID else "invalid")


@router.post(EVENTS_BULK, status_code=201, responses=documented(400, 408, 413, 415))
async def take_bulk(body: EventsInBulk, caller: Connection, services: Services) -> BulkEventOutcomes:
    """Accept up to a thousand runtime events of any sessions, as a JSON array or as lines (`application/x-ndjson`).

    Each event has a `session_id` and an `event_id`. Events are durable once the request is answered. The answer has a result
    for each event, in order: its id, or an error.
    """
    engine = services.engine
    require_audit(engine, caller)
    bulk = await to_thread.run_sync(read_bulk, body, caller, engine)
    published = PublishResult.of([])
    if bulk.records:
        async with services.turns.held((caller.name, record.session_id) for record in bulk.records):
            bulk.records = await assign_positions(services, caller, bulk.records)
            with durable_or_refused():
                published = await engine.publish(TOPIC, bulk.records)
    await _refuse_conflicts(services, caller, body, bulk, published)
    await store_dead_letters(services, bulk.dead_letters)
    services.metrics.events({"accepted": published.written, "known": published.known, "refused": len(bulk.refused)})
    return BulkEventOutcomes(
        accepted=published.written,
        known=published.known,
        refused=len(bulk.refused),
        results=bulk.results(_build_answers(bulk, published)),
    )


def read_bulk(body: Sequence[Any], caller: Holder, engine: RecordIntake) -> Bulk:
    """Return the records of a call, without secrets."""
    now = engine.now()
    gap = timedelta(minutes=engine.policy.session_gap_minutes)
    admission = Admission(engine.redactor, now)
    bulk = Bulk()

    def read(value: Any, index: int) -> tuple[AgentEvent, dict[str, str]] | RefusedBulkEvent:
        try:
            event = BulkEvent.model_validate(value)
        except ValidationError as error:
            return RefusedBulkEvent(error=problems_at(index, error), code="invalid")
        agent = agent_of(caller, event.agent, engine.redactor)
        owner = Owner(caller.name, caller.project or "", agent, event.session_id)
        context = ReadingContext(owner.connection, owner.project, agent, now, gap, engine.redactor)
        record = _read_event(value, f"[{index}]", owner, context)
        if isinstance(record, Problem):
            return bulk.reject(caller, index, value, record, admission)
        return record, project_note(event.project, caller)

    bulk.read(body, RefusedBulkEvent, read)
    return bulk


def _read_event(value: dict[str, Any], path: str, owner: Owner, context: ReadingContext) -> AgentEvent | Problem:
    """Return the record of one value, whose position is set later, or the reason why it is rejected."""
    if value.get("event") is None and value.get("type") is None:
        return Problem("not_an_event", f"{path}.event: is missing")
    event, within = find_event(value)
    if own_id(event) is None:
        return Problem("malformed_event", f"{path}{within}.event_id: {_NO_ID}")
    record = SessionEvents().record(event, f"{path}{within}", owner, context)
    return problem_of(record, f"{path}{within}") or record


async def _refuse_conflicts(
    services: ApiContext, caller: Holder, body: Sequence[Any], bulk: Bulk, published: PublishResult
) -> None:
    """Reject the events whose ids are stored with other content."""
    engine = services.engine
    admission = Admission(engine.redactor, engine.now())
    for number, conflict in enumerate(published.conflicts):
        index = bulk.indexes[conflict]
        differing = await differing_fields(services, number, bulk.records[conflict])
        within = find_event(body[index])[1]
        message = f"[{index}]{within}.event_id: {other_content(differing)}"
        bulk.refused[index] = bulk.reject(caller, index, body[index], Problem(CONFLICTING_ID, message), admission)


def _build_answers(bulk: Bulk, published: PublishResult) -> dict[int, TakenEvent]:
    """Return the answers to the stored events, by index."""
    answers = {}
    for index, record, notes, outcome in zip(bulk.indexes, bulk.records, bulk.notes, published.outcomes, strict=True):
        if index not in bulk.refused:
            duplicate = True if outcome == KNOWN else None
            answers[index] = TakenEvent(record.event_id, duplicate, notes.get("project"), notes.get("note"))
    return answers
