"""The events of one session of an event file as records: counted, named, redacted and checked one by one.

1. An event's `seq` is its position in its session over the whole file. Events that cannot be taken are counted, too, so that
   mending one changes neither the places nor the ids of the others.
2. A repeated id gets the suffix #2, #3, ... in order of arrival, as it does in a diagnosis (`audit.diagnosis.events.normalise_session`),
   and so does an id that a failure has in the causal graph.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from audit.diagnosis.diagnosis import FAILURE_NODES
from audit.diagnosis.events import NormalisedEvent, clean_payload, normalise_event, to_record
from audit.exchanges.labels import FIELD, read_labels
from audit.fingerprints import canonical_json
from audit.times import parse_timestamp
from schemas.bounds.limits import NOT_UNICODE, has_surrogates
from schemas.errors import InputError
from schemas.records import AgentEvent
from streams.sources.lines import Problem, json_type
from streams.sources.source import ReadingContext

MAX_EVENT = 512 * 1024
"""Characters of the largest event that is taken, as canonical JSON."""

Json = dict[str, Any]


class Owner(NamedTuple):
    """The owner of events: connection, project, agent and session."""

    connection: str
    project: str
    agent: str | None
    session_id: str


class SessionEvents:
    """The memory of one session while its file is read: how many events it had, and their ids."""

    def __init__(self) -> None:
        self._count = 0
        self._taken: set[str] = set()
        self._copies: dict[str, int] = {}
        self._has_lost = False

    def skip(self, count: int) -> None:
        """Count events that could not even be looked at."""
        self._count += count
        self._has_lost = True

    def record(self, raw: Any, place: str, owner: Owner, context: ReadingContext) -> AgentEvent | Problem:
        """The record of the session's next event, or why it cannot be taken; `place` says where in its line it stood."""
        seq = self._count
        self._count += 1
        if problem := _broken_id(raw, place):
            return problem
        try:
            event = self._named(normalise_event(context.redactor.redact_json(raw)[0], seq))
        except InputError as error:
            return _malformed(raw, error, seq, place)
        try:
            labels = read_labels(event.payload.get(FIELD), context.redactor, f"{place}.{FIELD}".lstrip("."))
        except InputError as error:
            return Problem("bad_labels", str(error))
        try:
            occurred_at = parse_timestamp(event.timestamp)
        except ValueError as error:
            return Problem("bad_timestamp", f"{place}.{error}".lstrip("."))
        payload = canonical_json(event.payload)
        if len(payload) > MAX_EVENT:
            return Problem(
                "too_long", f"{place or 'the event'} has {len(payload)} characters; the longest event has {MAX_EVENT}"
            )
        return to_record(
            event,
            connection=owner.connection,
            project=owner.project,
            agent=owner.agent,
            session_id=owner.session_id,
            seq=seq,
            occurred_at=occurred_at or context.ingested_at,
            ingested_at=context.ingested_at,
            payload_json=payload,
            labels=labels,
        )

    def plain(self, raw: Any, place: str) -> Json | Problem:
        """The session's next event as it is, for a diagnosis, or why it cannot be taken.

        Once one could not be taken, those after it are given the ids they have by their places.
        """
        seq = self._count
        self._count += 1
        problem = _broken_id(raw, place)
        try:
            event = problem or clean_payload(raw, seq)
        except InputError as error:
            event = _malformed(raw, error, seq, place)
        if isinstance(event, Problem):
            self._has_lost = True
            return event
        return {**event, "event_id": normalise_event(event, seq).event_id} if self._has_lost else event

    def _named(self, event: NormalisedEvent) -> NormalisedEvent:
        """The event with an id that no event of the session before it has."""
        name = event.event_id
        while name in self._taken or name in FAILURE_NODES:
            self._copies[event.event_id] = copy = self._copies.get(event.event_id, 1) + 1
            name = f"{event.event_id}#{copy}"
        self._taken.add(name)
        if name == event.event_id:
            return event
        return msgspec.structs.replace(event, event_id=name, payload={**event.payload, "event_id": name})


def _broken_id(raw: Any, place: str) -> Problem | None:
    """Return the problem of an event id that no record can keep as it is: repaired, it could become another event's."""
    if not isinstance(raw, dict) or not has_broken_id(raw):
        return None
    return Problem("malformed_event", f"{place}.event_id: {NOT_UNICODE}".lstrip("."))


def has_broken_id(event: Mapping[str, Any]) -> bool:
    """Tell whether the event was given an id that holds half a surrogate pair."""
    given = event.get("event_id")
    return isinstance(given, str) and has_surrogates(given)


def _malformed(raw: Any, error: InputError, seq: int, place: str) -> Problem:
    """Return why the value is no event, in the words of the file."""
    if not isinstance(raw, dict):
        return Problem("malformed_event", f"{place or 'the event'}: is {json_type(raw)}, not an object")
    where = str(error).removeprefix(f"events[{seq}]")
    at = place if where.startswith((".", ":", "[")) else f"{place}: "
    return Problem("malformed_event", f"{at}{where}" if place else where.lstrip(".: "))
