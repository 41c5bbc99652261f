"""Assembling: traces whose spans are all there become exchanges and events, which are taken in as if they had been sent.

1. When a trace is complete, and how often spans came after that, is a record: a rebuild reads it and decides nothing again.
2. Exchanges and events are taken in before that record. A kill between them makes a trace be assembled once more, into the same ids.
3. Late spans add events and revise exchanges: the one that a turn has keeps its id, and one that turns out to be part of another is
   withdrawn. A revision of what nothing is decided on yet waits, and all of its trace with it. Traces that tell of one turn together
   (`streams.upkeep.linking`) are assembled as one.
4. One trace that cannot be assembled is set aside as a dead letter, and the others go on.
5. Spans that come when those before them are deleted make nothing: what is left of their trace would be a part of it. They are counted,
   logged and set aside, one letter per trace.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from analytics.deletion.withdrawn import forget_withdrawn
from analytics.queries import query_many_records, query_records, query_rows
from audit.surrogates import json_bytes
from schemas.codec.single_object import decode
from schemas.errors import RecordError
from schemas.lazy.duckdb import duckdb
from schemas.records import AgentEvent, Deployment, Exchange, JudgingRequest, Record, Review, Span
from streams.engine.record_intake import RecordIntake
from streams.judging.revising import revise
from streams.log.admission import DEAD_LETTERS, Accepted, Admission, Place, Refusal, admissible
from streams.sources.otlp.traces.earlier import EarlierEvent
from streams.sources.otlp.traces.trace_records import Assembly, Decision, assemble
from streams.upkeep.deployments import TOPIC as DEPLOYMENTS
from streams.upkeep.linking import Part, TraceLinker
from streams.upkeep.reviewing import REVIEWS, evaluator_score
from streams.upkeep.seen_versions import SeenVersions

INTERVAL = 1.0
"""Seconds from one look to the next."""
AT_ONCE, SPANS_AT_ONCE = 2_000, 10_000
"""Traces that are assembled together, and spans of them, a trace more or less: each round waits for what the one before it wrote."""
EXCHANGES_AT_ONCE = 500
"""Exchanges that are taken in together: where this process decides on them, callers wait meanwhile."""
MAX_SPANS = 20_000
"""Spans of one trace that are assembled; one with more is set aside."""
SETTLED, IDLE = "settled", "idle"
TOO_MANY, LATE = "too_many_spans", "late_spans"
Key = tuple[str, str]
"""Connection and trace."""
log = logging.getLogger(__name__)


@dataclass
class OpenTrace:
    """A trace that has spans which are not assembled yet."""

    project: str
    last_at: datetime
    has_root: bool = False
    spans: int = 0
    first_offset: int = 0
    """The lowest position of a span, on whichever partition: what comes later may stand before what was there."""
    may_be_made: bool = False
    """Whether exchanges may have been made of it, though no decision says so: this process or the one before was cut short."""


class Due(NamedTuple):
    """A trace that is complete, and why."""

    key: Key
    reason: str


class _Draft(NamedTuple):
    """What a complete trace is made into by itself."""

    key: Key
    decision: Decision
    assembly: Assembly

    @property
    def part(self) -> Part:
        """The trace as a part of others."""
        session_id = self.assembly.decision.session_id
        return Part(self.key, session_id if session_id != self.key[1] else None, self.assembly.links)


@dataclass
class Made:
    """The records that some traces were made into."""

    assemblies: list[Assembly] = field(default_factory=list)
    revised: list[Exchange | JudgingRequest] = field(default_factory=list)
    """The further revisions of exchanges, with the requests to score them."""
    deferred: set[Key] = field(default_factory=set)
    """Traces that are to be assembled again a little later."""
    letters: Accepted = field(default_factory=Accepted)
    late: int = 0
    """Spans that came too late since this process began."""


class TraceAssembler:
    """Assembles traces as they become complete; see the module. A periodic task."""

    name = "traces"
    interval = INTERVAL

    def __init__(self, engine: RecordIntake, count_late: Callable[[int], None] = lambda _: None) -> None:
        """`count_late` is told how many spans came too late to make anything."""
        self._engine = engine
        self._count_late = count_late
        self._began = engine.now()
        self._positions: dict[int, int] = {}
        """Where the next look at each partition begins."""
        self._open: dict[Key, OpenTrace] = {}
        self._versions = SeenVersions(engine.store, engine.redactor)
        self._linker = TraceLinker()

    async def run(self) -> None:
        """Look for spans that have come and assemble the traces that are complete, again and again while there are many."""
        while self._engine.state().ready and await self._assembled_spans() >= SPANS_AT_ONCE:
            pass

    async def _assembled_spans(self) -> int:
        """Look once and assemble what is complete; the number of its spans."""
        await self._engine.flush("spans")
        await asyncio.to_thread(self._look)
        spans = 0
        for some in list(self._rounds(self._due(self._engine.now()))):
            deferred = await self._assemble(some)
            spans += sum(self._open.pop(one.key).spans for one in some if one.key not in deferred)
        return spans

    def _look(self) -> None:
        """Note the traces of which spans have come."""
        with contextlib.closing(self._engine.store.cursor()) as cursor:
            ends = {row["part"]: row["next_position"] for row in query_rows(cursor, "span_positions")}
            if ends == self._positions:
                return
            known = set(ends) <= set(self._positions)
            values = {
                "partitions": list(self._positions),
                "starts": list(self._positions.values()),
                "least": min(self._positions.values()) if known and self._positions else 0,
            }
            for row in query_rows(cursor, "touched_traces", values):
                self._note(row, is_left=not self._positions)
            self._positions = ends

    def _note(self, row: dict[str, Any], *, is_left: bool) -> None:
        key = row["connection"], row["trace_id"]
        trace = self._open.setdefault(
            key, OpenTrace(row["project"], row["last_at"], first_offset=row["first_offset"], may_be_made=is_left)
        )
        trace.last_at = max(trace.last_at, row["last_at"])
        trace.first_offset = min(trace.first_offset, row["first_offset"])
        trace.has_root = trace.has_root or row["has_root"]
        trace.spans += row["spans"]

    def _due(self, now: datetime) -> Iterable[Due]:
        """The traces that are complete by now, those that waited longest first."""
        for key, trace in sorted(self._open.items(), key=lambda one: one[1].last_at):
            rules = self._engine.policy.for_project(trace.project).settings.traces
            silent = (now - trace.last_at) / timedelta(seconds=1)
            if trace.has_root and silent >= rules.settle_seconds:
                yield Due(key, SETTLED)
            elif silent >= rules.idle_seconds:
                yield Due(key, IDLE)

    def _rounds(self, due: Iterable[Due]) -> Iterator[list[Due]]:
        """The traces that are assembled together, in order."""
        some, spans = list[Due](), 0
        for one in due:
            some.append(one)
            spans += self._open[one.key].spans
            if len(some) == AT_ONCE or spans >= SPANS_AT_ONCE:
                yield some
                some, spans = [], 0
        if some:
            yield some

    async def _assemble(self, due: Sequence[Due]) -> set[Key]:
        """Assemble traces; returns those that are to be assembled again a little later."""
        engine = self._engine
        # What is not seen of exchanges and events would be made a second time.
        await engine.wait_for_tables("exchanges")
        await engine.wait_for_tables("agent-events")
        made = await asyncio.to_thread(self._made, due)
        for one in due:
            self._open[one.key].may_be_made = True
        for key in made.deferred:
            self._open[key].last_at = engine.now()
        if made.late:
            self._count_late(made.late)
        exchanges = [exchange for one in made.assemblies for exchange in one.exchanges]
        # Before the exchanges: after a kill, their versions would be known already.
        deployed = [*exchanges, *(one for one in made.revised if isinstance(one, Exchange))]
        await engine.publish(DEPLOYMENTS, await asyncio.to_thread(self._deployed, deployed))
        for start in range(0, len(exchanges), EXCHANGES_AT_ONCE):
            some = exchanges[start : start + EXCHANGES_AT_ONCE]
            for outcome, exchange in zip(await engine.take_exchanges(some), some, strict=True):
                if isinstance(outcome, RecordError):
                    self._set_aside(made.letters, exchange, Refusal(self.name, outcome.code, str(outcome)))
        await engine.publish("exchanges", made.revised)
        if any(isinstance(one, Exchange) and one.withdrawn for one in made.revised):
            await engine.flush()
            await asyncio.to_thread(forget_withdrawn, engine.store)
        await engine.wait_for_tables("agent-events")
        events = await asyncio.to_thread(self._continued, [event for one in made.assemblies for event in one.events])
        await engine.publish("agent-events", events)
        await engine.publish(REVIEWS, list(self._reviews(made)))
        await engine.publish(DEAD_LETTERS, [decode(one) for one in made.letters.messages.get(DEAD_LETTERS, [])])
        await engine.publish("trace-assemblies", [one.decision for one in made.assemblies])
        return made.deferred

    def _made(self, due: Sequence[Due]) -> Made:
        made = Made()
        names = _names([one.key for one in due])
        with contextlib.closing(self._engine.store.cursor()) as cursor:
            before = {_key(row): row for row in query_rows(cursor, "assembled_traces", names)}
            spans = _spans(cursor, names, min(self._open[one.key].first_offset for one in due) if not before else 0)
            made_before = [key for one in due if (key := one.key) in before or self._open[key].may_be_made]
            exchanges, events = _exchanges(cursor, made_before), _events(cursor, made_before)
            drafts = list[_Draft]()
            for one in due:
                earlier, records = before.get(one.key), spans.get(one.key, [])
                if not records:
                    continue  # erased meanwhile
                if earlier is not None and earlier["spans"] >= len(records):
                    # Read again after a start, or what was deleted is followed by more.
                    self._note_late(made, [one for one in records if one.ingested_at > earlier["assembled_at"]])
                    continue
                decision = Decision(
                    one.reason,
                    self._engine.now(),
                    revision=0 if earlier is None else earlier["revision"] + 1,
                    earlier=exchanges.get(one.key, ()),
                    told=events.get(one.key, ()),
                    session=one.key[1] if earlier is not None and earlier["is_filed_by_trace"] else None,
                )
                if (assembly := self._assembled(made, records, decision)) is not None:
                    drafts.append(_Draft(one.key, decision, assembly))
            joined = set[Key]()
            for group in self._linker.groups(cursor, [draft.part for draft in drafts], lambda keys: _spans_of(cursor, keys)):
                members = [draft for draft in drafts if draft.key in group and draft.key not in joined]
                if sum(map(len, group.values())) <= MAX_SPANS and self._join(cursor, made, group, members):
                    joined.update(draft.key for draft in members)
        for draft in drafts:
            if draft.key not in joined:
                self._add(made, draft.assembly, draft.decision, [draft.key])
        return made

    def _join(
        self, cursor: duckdb.DuckDBPyConnection, made: Made, group: Mapping[Key, Sequence[Span]], members: Sequence[_Draft]
    ) -> bool:
        """Assemble linked traces as one; `members` are those that are complete now. Tells whether that was possible."""
        keys = list(group)
        exchanges, events = _exchanges(cursor, keys), _events(cursor, keys)
        earlier = sorted((one for own in exchanges.values() for one in own), key=lambda one: (one.occurred_at, one.exchange_id))
        told = [one for own in events.values() for one in own]
        records = [record for own in group.values() for record in own]
        assemblies = list[tuple[Assembly, Decision]]()
        for draft in members:
            decision = draft.decision._replace(earlier=earlier, told=told, session=None, trace_id=draft.key[1])
            if (assembly := self._assembled(made, records, decision)) is None:
                return False
            assemblies.append((assembly, decision))
        (first, decision), *others = assemblies
        if self._add(made, first, decision, [draft.key for draft in members]):
            # What they were made into together is there once; that each is complete is a decision of its own.
            made.assemblies += [assembly._replace(exchanges=[], events=[], ratings=[]) for assembly, _ in others]
        return True

    def _deployed(self, exchanges: Sequence[Exchange]) -> list[Deployment]:
        return list(self._versions.deployments(exchanges, self._engine.now()))

    def _reviews(self, made: Made) -> Iterator[Review]:
        """The ratings of the traces, as far as they are numbers on their project's scale."""
        for one in made.assemblies:
            project, connection = one.decision.project, one.decision.connection
            scale = self._engine.policy.for_project(project).settings.traces.ratings
            for rating in one.ratings:
                review = evaluator_score(connection, project, rating, scale, self._engine.now())
                if review is not None:
                    yield review

    def _assembled(self, made: Made, records: Sequence[Span], decision: Decision) -> Assembly | None:
        """What a trace is made into; None where it cannot be assembled, and is set aside."""
        if len(records) > MAX_SPANS:
            words = (
                f"trace {records[0].trace_id} has {len(records)} spans; {MAX_SPANS} are assembled at most: end its root earlier"
            )
            self._set_aside(made.letters, records[0], Refusal(self.name, TOO_MANY, words))
            return None
        try:
            return assemble(records, decision)
        except Exception as error:
            log.exception("the trace %s cannot be assembled; it is set aside", records[0].trace_id)
            self._set_aside(made.letters, records[0], Refusal(self.name, "unassembled", str(error)))
            return None

    def _add(self, made: Made, assembly: Assembly, decision: Decision, keys: Sequence[Key]) -> bool:
        """Add an assembly once its exchanges are revised; tells whether it was, or waits with all of these traces."""
        revised = self._revised(made, assembly, decision)
        if revised is None:
            made.deferred.update(keys)
            return False
        made.assemblies.append(revised)
        return True

    def _revised(self, made: Made, assembly: Assembly, decision: Decision) -> Assembly | None:
        """The assembly with those of its exchanges that are new, once the others are revised; None where it has to wait."""
        if not decision.earlier:
            return assembly
        engine = self._engine
        earlier = {one.exchange_id for one in decision.earlier}
        told = [one for one in assembly.exchanges if one.exchange_id in earlier]
        revisions = revise(engine.store, engine.policy, told, engine.now())
        if revisions.waiting:
            return None
        further = [one for one in revisions.records if isinstance(one, JudgingRequest) or one.revision]
        refused = {one.exchange_id for one in further if not self._is_admissible(made, one)}
        made.revised += [one for one in further if one.exchange_id not in refused]
        return assembly._replace(
            exchanges=[one for one in assembly.exchanges if one.exchange_id not in earlier],
            decision=msgspec.structs.replace(
                assembly.decision, revised_exchanges=revisions.revised - assembly.decision.withdrawn_exchanges
            ),
        )

    def _is_admissible(self, made: Made, record: Exchange | JudgingRequest) -> bool:
        """Tell whether a record may be written; one that may not is set aside."""
        try:
            admissible(record)
        except RecordError as error:
            self._set_aside(made.letters, record, Refusal(self.name, error.code, str(error)))
            return False
        return True

    def _note_late(self, made: Made, late: Sequence[Span]) -> None:
        """Make it known that spans of a trace came when those before them were deleted."""
        if not late:
            return
        words = (
            f"{len(late)} spans of the trace {late[0].trace_id} came after its other spans were deleted, a day after those came: "
            "they make nothing; export spans within a day"
        )
        self._set_aside(made.letters, late[0], Refusal(self.name, LATE, words))
        fresh = sum(one.ingested_at >= self._began for one in late)
        if fresh:
            made.late += fresh
            log.warning("%s", words)

    def _set_aside(self, letters: Accepted, record: Record, refusal: Refusal) -> None:
        admission = Admission(self._engine.redactor, self._engine.now())
        admission.set_aside(letters, Place("traces", 0), refusal, json_bytes(record))

    def _continued(self, events: Sequence[AgentEvent]) -> list[AgentEvent]:
        """The events that the log does not have, each session's behind those that it has."""
        found: list[AgentEvent] = []
        by_connection: dict[str, list[AgentEvent]] = {}
        for event in events:
            by_connection.setdefault(event.connection, []).append(event)
        with contextlib.closing(self._engine.store.cursor()) as cursor:
            for connection, own in by_connection.items():
                values = {
                    "connection": connection,
                    "sessions": [event.session_id for event in own],
                    "event_ids": [event.event_id for event in own],
                }
                rows = {row["session_id"]: row for row in query_rows(cursor, "session_positions", values)}
                found += _placed(own, rows)
        return found


def _placed(events: Sequence[AgentEvent], rows: dict[str, dict[str, Any]]) -> list[AgentEvent]:
    following = {session: row["next_seq"] for session, row in rows.items()}
    known = {session: frozenset(row["known"]) for session, row in rows.items()}
    placed = []
    for event in events:
        if event.event_id not in known.get(event.session_id, ()):
            seq = following.get(event.session_id, 0)
            following[event.session_id] = seq + 1
            placed.append(msgspec.structs.replace(event, seq=seq))
    return placed


def _spans_of(cursor: duckdb.DuckDBPyConnection, keys: Sequence[Key]) -> dict[Key, list[Span]]:
    return _spans(cursor, _names(keys), 0) if keys else {}


def _spans(cursor: duckdb.DuckDBPyConnection, names: dict[str, list[str]], least: int) -> dict[Key, list[Span]]:
    found: dict[Key, list[Span]] = {}
    for record in query_many_records(cursor, "trace_spans", Span, {**names, "least": least}):
        found.setdefault((record.connection, record.trace_id), []).append(record)
    return found


def _exchanges(cursor: duckdb.DuckDBPyConnection, keys: Sequence[Key]) -> dict[Key, list[Exchange]]:
    """The exchanges that were made of some traces, as they were told last; the oldest of a trace first."""
    found: dict[Key, list[Exchange]] = {}
    if keys:
        for one in query_records(cursor, "trace_exchanges", Exchange, _names(keys)):
            found.setdefault((one.connection, one.exchange_id.partition(":")[0]), []).append(one)
    return found


def _events(cursor: duckdb.DuckDBPyConnection, keys: Sequence[Key]) -> dict[Key, list[EarlierEvent]]:
    """The events that were made of some traces, in the order in which they were told."""
    found: dict[Key, list[EarlierEvent]] = {}
    if keys:
        for row in query_rows(cursor, "trace_events", _names(keys)):
            event = EarlierEvent(row["event_id"], msgspec.json.decode(row["payload"]))
            found.setdefault(_key(row), []).append(event)
    return found


def _names(keys: Sequence[Key]) -> dict[str, list[str]]:
    return {"connections": [connection for connection, _ in keys], "trace_ids": [trace_id for _, trace_id in keys]}


def _key(row: dict[str, Any]) -> Key:
    return row["connection"], row["trace_id"]
