"""Events in bulk: up to a thousand of any sessions, an array or one per line. A wrong one does not stop the others.

An event is identified by its own event_id, so that events can be sent again in any batches. Its position follows the session's stored
events, in the order of the call. A value has the form of a line of an event file (`streams.sources.event_files`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from anyio import to_thread
from fastapi import APIRouter
from pydantic import ValidationError

from audit.surrogates import json_bytes
from schemas.records import AgentEvent
from service.http.routes.bulk import Batch
from service.http.routes.events import (
    CONFLICTING_ID,
    TOPIC,
    continued,
    differing_fields,
    other_content,
    own_id,
    problem_of,
    set_aside,
)
from service.http.routes.ingest import agent_of, filed_elsewhere, require_audit
from service.setup.access.access import Holder
from service.text.links import EVENTS_BULK
from service.web.authentication import Connection
from service.web.bodies import BatchRoute
from service.web.context import ApiContext, Services, durable_or_refused
from service.web.errors import documented, problems_at
from service.web.models import BulkEvent, EventsInBulk
from service.write.outcomes import BulkEventOutcomes, RefusedBulkEvent, TakenEvent
from streams.engine.record_intake import Published, RecordIntake
from streams.log.admission import KNOWN, Accepted, Admission, Place, Refusal
from streams.sources.event_files import Owner, SessionEvents, event_in
from streams.sources.lines import Problem
from streams.sources.source import ReadingContext

router = APIRouter(route_class=BatchRoute, tags=["records"])
_NO_ID = "is missing; give each event its own id"


@dataclass
class Bulk(Batch[AgentEvent, RefusedBulkEvent]):
    """A batch of events, with dead letters of the refused ones."""

    letters: Accepted = field(default_factory=Accepted)

    def set_aside(
        self, caller: Holder, index: int, value: dict[str, Any], problem: Problem, admission: Admission
    ) -> RefusedBulkEvent:
        """Refuse an event with a dead letter; return the answer to it."""
        source = Place(f"http:{caller.name}/{value['session_id']}", index)
        admission.set_aside(
            self.letters, source, Refusal("http", problem.reason, problem.detail), json_bytes(event_in(value)[0])
        )
        return RefusedBulkEvent(error=problem.detail, code="conflict" if problem.reason == CONFLICTING_ID else "invalid")


@router.post(EVENTS_BULK, status_code=201, responses=documented(400, 408, 413, 415))
async def take_bulk(body: EventsInBulk, caller: Connection, services: Services) -> BulkEventOutcomes:
    """Take up to a thousand runtime events of any sessions, as a JSON array or as lines (`application/x-ndjson`).

    Each names its `session_id` and has its own `event_id`. They are durable when this is answered. Each has its own result, in order:
    its id, or an error.
    """
    engine = services.engine
    require_audit(engine, caller)
    bulk = await to_thread.run_sync(read_bulk, body, caller, engine)
    published = Published.of([])
    if bulk.records:
        async with services.turns.held((caller.name, record.session_id) for record in bulk.records):
            bulk.records = await continued(services, caller, bulk.records)
            with durable_or_refused():
                published = await engine.publish(TOPIC, bulk.records)
    await _refuse_conflicts(services, caller, body, bulk, published)
    await set_aside(services, bulk.letters)
    services.metrics.events({"accepted": published.written, "known": published.known, "refused": len(bulk.refused)})
    return BulkEventOutcomes(
        accepted=published.written,
        known=published.known,
        refused=len(bulk.refused),
        results=bulk.results(_build_answers(bulk, published)),
    )


def read_bulk(body: Sequence[Any], caller: Holder, engine: RecordIntake) -> Bulk:
    """Return the records of a call, each without secrets."""
    now, gap = engine.now(), timedelta(minutes=engine.policy.session_gap_minutes)
    admission, bulk = Admission(engine.redactor, now), Bulk()

    def read(value: Any, index: int) -> tuple[AgentEvent, dict[str, str]] | RefusedBulkEvent:
        try:
            event = BulkEvent.model_validate(value)
        except ValidationError as error:
            return RefusedBulkEvent(error=problems_at(index, error), code="invalid")
        agent = agent_of(caller, event.agent, engine.redactor)
        owner = Owner(caller.name, caller.project or "", agent, event.session_id)
        context = ReadingContext(owner.connection, owner.project, agent, now, gap, engine.redactor)
        record = _read(value, f"[{index}]", owner, context)
        if isinstance(record, Problem):
            return bulk.set_aside(caller, index, value, record, admission)
        return record, filed_elsewhere(event.project, caller)

    bulk.read(body, RefusedBulkEvent, read)
    return bulk


def _read(value: dict[str, Any], path: str, owner: Owner, context: ReadingContext) -> AgentEvent | Problem:
    """Return the record of one value, whose position is set later, or the reason why it is refused."""
    if value.get("event") is None and value.get("type") is None:
        return Problem("not_an_event", f"{path}.event: is missing")
    event, within = event_in(value)
    if own_id(event) is None:
        return Problem("malformed_event", f"{path}{within}.event_id: {_NO_ID}")
    record = SessionEvents().record(event, f"{path}{within}", owner, context)
    return problem_of(record, f"{path}{within}") or record


async def _refuse_conflicts(
    services: ApiContext, caller: Holder, body: Sequence[Any], bulk: Bulk, published: Published
) -> None:
    """Refuse the events whose ids are stored with other content."""
    engine = services.engine
    admission = Admission(engine.redactor, engine.now())
    for number, conflict in enumerate(published.conflicts):
        index = bulk.indexes[conflict]
        differing = await differing_fields(services, number, bulk.records[conflict])
        within = event_in(body[index])[1]
        words = f"[{index}]{within}.event_id: {other_content(differing)}"
        bulk.refused[index] = bulk.set_aside(caller, index, body[index], Problem(CONFLICTING_ID, words), admission)


def _build_answers(bulk: Bulk, published: Published) -> dict[int, TakenEvent]:
    """Return the answers to the stored events, by index."""
    answers = {}
    for index, record, notes, outcome in zip(bulk.indexes, bulk.records, bulk.notes, published.outcomes, strict=True):
        if index not in bulk.refused:
            duplicate = True if outcome == KNOWN else None
            answers[index] = TakenEvent(record.event_id, duplicate, notes.get("project"), notes.get("note"))
    return answers
