"""Assembling, the stage of traces: complete traces become exchanges and events.

1. The stage reads spans as soon as the tables have them, and keeps a state of each open trace. A trace is open while it has spans that
   are not assembled. A trace becomes complete after some time without spans, so the serving process runs the stage with a timer.
2. The completion of a trace, and of each later batch of spans, is a record: a rebuild reads these records instead of deciding again.
3. The records of complete traces are committed with the states and the position. In one process this is all or nothing, so a kill
   repeats nothing. On Kafka the records come first, the decisions last among them: after a kill in between, the same traces are
   assembled again, into the same ids.
4. Late spans add events and revise exchanges: the exchange of a turn keeps its id, and an exchange that turns out to be part of another
   is withdrawn. A revision of an undecided exchange is deferred, with its whole trace. Traces that describe one turn together are linked
   and assembled as one.
5. A trace that cannot be assembled becomes a dead letter, and the other traces are assembled.
6. Spans that arrive after the earlier spans of their trace were deleted are not assembled, because the rest of the trace is missing. They
   are counted, logged and become dead letters, one per trace.

Linking (`TraceLinker`) finds the traces that describe the same turns (`streams.sources.otlp.trace`):

1. Two instrumentors that export side by side describe the same time: they are recognized in memory, from the recently assembled traces.
2. The parts of a turn are looked up in the table, among the traces of the session, and only for a trace with just one side of a call.
   Among the traces with the same question or call, the parts are those from the trace that starts the turn up to the next start of a
   turn. Traces with tools alone are added by the ids of the calls in those traces.
3. All linked traces are one group. If more spans of a member arrive later, it is grouped again.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

import msgspec

from analytics.deletion.retention import delete_withdrawn_scores
from analytics.queries import query_records, query_rows
from analytics.store.positions import read_all_states, read_watermarks
from audit.surrogates import json_bytes
from schemas.codec.single_object import decode, encode
from schemas.errors import RecordError
from schemas.lazy import duckdb
from schemas.records import AgentEvent, Exchange, JudgingRequest, Record, Review, Span
from streams.engine.record_intake import RecordIntake
from streams.judging.rejudging import revise
from streams.log.admission import DEAD_LETTERS, Admission, EncodedRecords, RecordOrigin, Refusal, encode_validated
from streams.log.log import Commit, Submission
from streams.sources.otlp.stored_spans import to_stored_span
from streams.sources.otlp.trace import Links, RecentRequests, find_links
from streams.sources.otlp.trace_records import Assembly, Decision, EarlierEvent, assemble
from streams.stage_batches import session_key
from streams.topology import ASSEMBLING, OpenTrace
from streams.upkeep.annotations import REVIEWS, SeenVersions, evaluator_score
from streams.upkeep.annotations import TOPIC as DEPLOYMENTS

TRACES_AT_ONCE = 500
"""Maximum number of traces that are assembled together. If this process decides on exchanges, their senders wait meanwhile."""
RETRY_SECONDS = 1.0
"""Seconds between a failure and the next try."""
MAX_PAUSE_SECONDS = 60.0
"""The longest pause. It is bounded because somebody may set the clock."""
MAX_SPANS = 20_000
"""Maximum number of spans of a trace; a trace with more becomes a dead letter."""
TOO_MANY = "too_many_spans"
LATE = "late_spans"
EXCHANGES = "exchanges"
EVENTS = "agent-events"
DECISIONS = "trace-assemblies"
log = logging.getLogger(__name__)

Key = tuple[str, str]
"""Connection and trace."""
Load = Callable[[Sequence[Key]], Mapping[Key, list[Span]]]
"""Reads the spans of traces."""


class Part(NamedTuple):
    """A complete trace: its session, if it names one, and its possible links to other traces."""

    key: Key
    session_id: str | None
    links: Links


class _Other(NamedTuple):
    """Another trace of a session: its start, and whether its first request continues with outputs of tools."""

    key: Key
    started_at: datetime
    resumes: bool | None


class TraceLinker:
    """Finds the traces to assemble together."""

    def __init__(self) -> None:
        self._recent = RecentRequests[Key]()

    def groups(self, cursor: duckdb.DuckDBPyConnection, parts: Sequence[Part], load: Load) -> list[dict[Key, list[Span]]]:
        """Return the groups of several traces that `parts` belong to, with the spans of each trace, read by `load`."""
        groups = _Groups(part.key for part in parts)
        for part in parts:
            scoped = [request._replace(key=f"{part.key[0]} {request.key}") for request in part.links.requests]
            for other in self._recent.add(scoped, part.key):
                groups.join(part.key, other)
        incomplete = [part for part in parts if part.links.texts and part.session_id is not None]
        for part, others in _find_linked_traces(cursor, [(part, part.links.texts) for part in incomplete]):
            for key in _select_turn(part, others):
                groups.join(part.key, key)
        key_groups = groups.linked()
        spans = load([key for keys in key_groups for key in keys])
        spans_by_group = [{key: spans[key] for key in keys if key in spans} for keys in key_groups]
        _add_tool_traces(cursor, spans_by_group, {part.key: part for part in incomplete}, load)
        return [group for group in spans_by_group if len(group) > 1]


class _Groups:
    """Keys that belong together, as a union-find forest."""

    def __init__(self, keys: Iterable[Key]) -> None:
        self._parents: dict[Key, Key] = {key: key for key in keys}

    def join(self, key: Key, other: Key) -> None:
        """Merge the groups of two keys."""
        self._parents[self._find_root(key)] = self._find_root(other)

    def linked(self) -> list[list[Key]]:
        """Return the groups of more than one key, in order."""
        groups: dict[Key, list[Key]] = defaultdict(list)
        for key in sorted(self._parents):
            groups[self._find_root(key)].append(key)
        return sorted(group for group in groups.values() if len(group) > 1)

    def _find_root(self, key: Key) -> Key:
        root = self._parents.setdefault(key, key)
        while root != self._parents[root]:
            root = self._parents[root]
        self._parents[key] = root
        return root


def _find_linked_traces(
    cursor: duckdb.DuckDBPyConnection, texts_by_part: Sequence[tuple[Part, Iterable[str]]]
) -> list[tuple[Part, list[_Other]]]:
    """Return the other traces of each part's session that share one of the part's texts."""
    links = [(part, text) for part, texts in texts_by_part for text in sorted(texts)]
    if not links:
        return []
    values = {
        "connections": [part.key[0] for part, _ in links],
        "trace_ids": [part.key[1] for part, _ in links],
        "sessions": [part.session_id for part, _ in links],
        "links": [text for _, text in links],
    }
    by_part: dict[Key, list[_Other]] = defaultdict(list)
    for row in query_rows(cursor, "linked_traces", values):
        other = _Other((row["connection"], row["other_id"]), row["started_at"], row["resumes"])
        by_part[row["connection"], row["trace_id"]].append(other)
    return [(part, by_part[part.key]) for part, _ in texts_by_part if part.key in by_part]


def _select_turn(part: Part, others: Iterable[_Other]) -> list[Key]:
    """Return the traces of a part's turn: from the trace that starts it up to the next trace that starts a turn."""
    this = _Other(part.key, part.links.started_at, part.links.resumes)
    ordered = sorted([this, *others], key=lambda trace: (trace.started_at, trace.key))
    first = ordered.index(this)
    last = first
    while first > 0 and ordered[first].resumes is not False:
        first -= 1
    while last + 1 < len(ordered) and ordered[last + 1].resumes is not False:
        last += 1
    return [trace.key for trace in ordered[first : last + 1]]


def _add_tool_traces(
    cursor: duckdb.DuckDBPyConnection, groups: Sequence[dict[Key, list[Span]]], parts: Mapping[Key, Part], load: Load
) -> None:
    """Add the traces that have only tools and one of a group's calls."""
    calls_by_part: list[tuple[Part, Iterable[str]]] = []
    group_of: dict[Key, dict[Key, list[Span]]] = {}
    for group in groups:
        part = next((parts[key] for key in group if key in parts), None)
        if part is not None:
            links = find_links(to_stored_span(span) for spans in group.values() for span in spans)
            calls_by_part.append((part._replace(links=links), links.calls))
            group_of[part.key] = group
    for part, others in _find_linked_traces(cursor, calls_by_part):
        group = group_of[part.key]
        tool_keys = [
            other.key
            for other in others
            if other.resumes is None and part.links.started_at <= other.started_at <= part.links.ended_at
        ]
        group.update(load([key for key in tool_keys if key not in group]))


class Due(NamedTuple):
    """The time when a trace is complete, and the reason."""

    at: datetime
    key: Key
    reason: str


class _Draft(NamedTuple):
    """A complete trace, assembled by itself."""

    key: Key
    decision: Decision
    assembly: Assembly

    @property
    def part(self) -> Part:
        """The trace as a possible part of a group."""
        session_id = self.assembly.decision.session_id
        return Part(self.key, session_id if session_id != self.key[1] else None, self.assembly.links)


@dataclass
class AssemblyResult:
    """The records assembled from some traces."""

    assemblies: list[Assembly] = field(default_factory=list)
    revised: list[Exchange | JudgingRequest] = field(default_factory=list)
    """Further revisions of exchanges, with the requests to score them."""
    deferred: set[Key] = field(default_factory=set)
    """Traces that must be assembled again a little later."""
    dead_letters: EncodedRecords = field(default_factory=EncodedRecords)
    late: int = 0
    """Number of spans that arrived too late to be assembled."""

    @property
    def has_withdrawn(self) -> bool:
        """Whether an exchange turned out to be part of another one."""
        return any(isinstance(record, Exchange) and record.withdrawn for record in self.revised)


class TraceAssembler:
    """The stage, as the module describes: a periodic task that is also started whenever the tables have new rows."""

    name = ASSEMBLING.name

    def __init__(self, engine: RecordIntake, count_late: Callable[[int], None] = lambda _: None) -> None:
        """`count_late` is called with the number of spans that arrived too late to be assembled."""
        self.interval = RETRY_SECONDS
        self._engine = engine
        self._count_late = count_late
        self._is_loaded = False
        """Whether the following fields match the log, except for changes in the next commit."""
        self._open: dict[Key, OpenTrace] = {}
        self._queue: list[Due] = []
        """A heap of completion times; it also holds outdated times of traces that got more spans."""
        self._changed: set[Key] = set()
        """The traces whose states the next commit includes."""
        self._positions: dict[int, int] = {}
        """The next offset to read, by partition."""
        self._committed: dict[int, int] = {}
        """The positions in the log."""
        self._inherited: set[Key] = set()
        """Open traces from an earlier process: on Kafka, it may have published exchanges without the decision."""
        self._versions = SeenVersions(engine.store, engine.redactor)
        self._linker = TraceLinker()

    async def run(self) -> None:
        """Read new spans and assemble complete traces."""
        self.interval = RETRY_SECONDS
        try:
            while self._engine.state().ready:
                if not self._is_loaded:
                    await self._load()
                if not await self._advance():
                    self.interval = self._pause()
                    return
        except BaseException:
            # The log may or may not have the last commit: read its states again.
            self._is_loaded = False
            raise

    async def _load(self) -> None:
        """Load the stage's states and positions from the log."""
        await self._engine.flush()
        self._open, self._committed = await asyncio.to_thread(self._load_states)
        self._positions = dict(self._committed)
        self._changed = set()
        if not self._committed:
            self._positions = {number: end for number, end in self._engine.ends_in_tables(ASSEMBLING.source).items() if end}
            self._open = await asyncio.to_thread(self._load_undecided)
            self._changed = set(self._open)
        self._queue = []
        self._inherited = set(self._open)
        for key in self._open:
            self._schedule(key)
        self._versions = SeenVersions(self._engine.store, self._engine.redactor)
        self._is_loaded = True

    def _load_states(self) -> tuple[dict[Key, OpenTrace], dict[int, int]]:
        """Read the open traces and the positions from the tables."""
        with contextlib.closing(self._engine.store.cursor()) as cursor:
            states = read_all_states(cursor, self.name)
            positions = {partition: position for (_, partition), position in read_watermarks(cursor, self.name).items()}
        decoder = msgspec.msgpack.Decoder(OpenTrace)
        return {_key_of_state(name): decoder.decode(state) for name, state in states.items()}, positions

    def _load_undecided(self) -> dict[Key, OpenTrace]:
        """Read the open traces of a database from a version without states of them."""
        with contextlib.closing(self._engine.store.cursor()) as cursor:
            return {_key(row): _open_trace(row) for row in query_rows(cursor, "undecided_traces")}

    async def _advance(self) -> bool:
        """Read some spans, assemble some traces, and commit both. Return whether there was work."""
        engine = self._engine
        ends = engine.ends_in_tables(ASSEMBLING.source)
        if any(end > self._positions.get(partition, 0) for partition, end in ends.items()):
            await asyncio.to_thread(self._read_new_spans, ends)
        due = self._pop_due(engine.now())
        if not due and self._positions == self._committed:
            return False
        result = AssemblyResult()
        submission = Submission()
        if due:
            result, submission = await self._assemble_due(due)
        self._close_traces(due, result.deferred)
        await self._commit(submission)
        self._inherited.difference_update(due)
        if result.late:
            self._count_late(result.late)
        if result.has_withdrawn:
            await engine.flush()
            await asyncio.to_thread(delete_withdrawn_scores, engine.store)
        return True

    def _close_traces(self, due: Iterable[Key], deferred: Collection[Key]) -> None:
        """Close the assembled traces, and schedule the deferred ones again."""
        for key in due:
            if key in deferred:
                self._open[key] = msgspec.structs.replace(self._open[key], last_at=self._engine.now())
                self._schedule(key)
            else:
                del self._open[key]
            self._changed.add(key)

    async def _commit(self, submission: Submission) -> None:
        """Commit records with the changed states and the positions."""
        states = {session_key(*key): self._state_of(key) for key in self._changed}
        positions = dict(self._positions)
        commit = Commit(states={self.name: states}, positions={self.name: positions})
        await self._engine.commit(replace(submission, commit=commit))
        self._committed = positions
        self._changed = set()

    def _read_new_spans(self, ends: Mapping[int, int]) -> None:
        """Read a batch of new spans per partition, and track their traces."""
        with contextlib.closing(self._engine.store.cursor()) as cursor:
            for partition, end in ends.items():
                start = self._positions.get(partition, 0)
                position = min(end, start + ASSEMBLING.records_at_once)
                if start < position:
                    values = {"partition": partition, "start": start, "end": position}
                    self._track_arrivals(query_rows(cursor, "arrived_spans", values))
                    self._positions[partition] = position

    def _track_arrivals(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            key = _key(row)
            trace = _open_trace(row)
            if key in self._open:
                trace = self._open[key].followed_by(trace)
            self._open[key] = trace
            self._changed.add(key)
            self._schedule(key)

    def _schedule(self, key: Key) -> None:
        """Schedule a trace for the time when it is complete, if no more spans arrive."""
        heapq.heappush(self._queue, self._due(key))

    def _due(self, key: Key) -> Due:
        trace = self._open[key]
        at, reason = trace.completion(self._engine.policy.for_project(trace.project).settings.traces)
        return Due(at, key, reason)

    def _pop_due(self, now: datetime) -> dict[Key, Due]:
        """Take a batch of complete traces from the queue, in the order of their completion."""
        # Rounded to seconds, because assembling a few traces takes nearly as long as assembling hundreds.
        second = now.replace(microsecond=0)
        due: dict[Key, Due] = {}
        spans = 0
        while self._queue and self._queue[0].at <= second:
            if len(due) >= TRACES_AT_ONCE or spans >= ASSEMBLING.records_at_once:
                break
            candidate = heapq.heappop(self._queue)
            if candidate.key in self._open and candidate == self._due(candidate.key):
                due[candidate.key] = candidate
                spans += self._open[candidate.key].spans
        return due

    def _pause(self) -> float:
        """Return the seconds until the next trace is complete."""
        if not self._queue:
            return MAX_PAUSE_SECONDS
        second = self._queue[0].at + timedelta(seconds=1) - timedelta.resolution
        return min(MAX_PAUSE_SECONDS, max(0.0, (second.replace(microsecond=0) - self._engine.now()).total_seconds()))

    def _state_of(self, key: Key) -> bytes:
        """Encode the state of a trace; empty if it is no longer open."""
        return msgspec.msgpack.encode(self._open[key]) if key in self._open else b""

    async def _assemble_due(self, due: Mapping[Key, Due]) -> tuple[AssemblyResult, Submission]:
        """Assemble complete traces. Return the result, and its records as a submission."""
        # Exchanges, events and decisions that the tables lack would be created a second time.
        for topic in (EXCHANGES, EVENTS, DECISIONS):
            await self._engine.wait_for_tables(topic)
        result = await asyncio.to_thread(self._assemble_all, due)
        # Other senders may add events to the same sessions.
        await self._engine.wait_for_tables(EVENTS)
        return result, await asyncio.to_thread(self._submission, result)

    def _submission(self, result: AssemblyResult) -> Submission:
        """Return the records by topic."""
        new = [exchange for assembly in result.assemblies for exchange in assembly.exchanges]
        exchanges = [*new, *(record for record in result.revised if isinstance(record, Exchange))]
        by_topic: dict[str, Sequence[Record]] = {
            DEPLOYMENTS: list(self._versions.deployments(exchanges, self._engine.now())),
            EXCHANGES: [*new, *result.revised],
            EVENTS: self._renumber_new([event for assembly in result.assemblies for event in assembly.events]),
            REVIEWS: list(self._reviews(result)),
        }
        records: dict[str, list[Record]] = defaultdict(list)
        messages: dict[str, list[bytes]] = defaultdict(list)
        for topic, topic_records in by_topic.items():
            for record in topic_records:
                message = self._encode_admissible(result, record)
                if message is not None:
                    records[topic].append(record)
                    messages[topic].append(message)
        for message in result.dead_letters.messages.get(DEAD_LETTERS, ()):
            records[DEAD_LETTERS].append(decode(message))
            messages[DEAD_LETTERS].append(message)
        for assembly in result.assemblies:
            records[DECISIONS].append(assembly.decision)
            messages[DECISIONS].append(encode(assembly.decision))
        return Submission(records, messages)

    def _assemble_all(self, due: Mapping[Key, Due]) -> AssemblyResult:
        """Assemble each trace by itself, then the linked ones together."""
        result = AssemblyResult()
        with contextlib.closing(self._engine.store.cursor()) as cursor:
            drafts = self._assemble_alone(cursor, result, due)
            joined = self._assemble_groups(cursor, result, drafts)
        for draft in drafts:
            if draft.key not in joined:
                self._add(result, draft.assembly, draft.decision, [draft.key])
        return result

    def _assemble_alone(
        self, cursor: duckdb.DuckDBPyConnection, result: AssemblyResult, due: Mapping[Key, Due]
    ) -> list[_Draft]:
        """Assemble each trace by itself; late spans and failures are noted in `result`."""
        parameters = _trace_parameters(due)
        decided = {_key(row): row for row in query_rows(cursor, "assembled_traces", parameters)}
        first_offset = 0 if decided else min(self._open[key].first_offset for key in due)
        spans = _load_spans(cursor, parameters, first_offset)
        may_have_records = [key for key in due if key in decided or key in self._inherited]
        exchanges = _load_exchanges(cursor, may_have_records)
        events = _load_events(cursor, may_have_records)
        drafts: list[_Draft] = []
        for key in due:
            earlier = decided.get(key)
            records = spans.get(key, [])
            if not records:
                continue  # erased meanwhile
            if earlier is not None and earlier["spans"] >= len(records):
                # The other spans were deleted, or all spans were in the tables when the trace was assembled.
                self._note_late(result, [span for span in records if span.ingested_at > earlier["assembled_at"]])
                continue
            decision = Decision(
                due[key].reason,
                self._engine.now(),
                revision=0 if earlier is None else earlier["revision"] + 1,
                earlier=exchanges.get(key, ()),
                earlier_events=events.get(key, ()),
                session=key[1] if earlier is not None and earlier["is_filed_by_trace"] else None,
            )
            assembly = self._assemble(result, records, decision)
            if assembly is not None:
                drafts.append(_Draft(key, decision, assembly))
        return drafts

    def _assemble_groups(self, cursor: duckdb.DuckDBPyConnection, result: AssemblyResult, drafts: Sequence[_Draft]) -> set[Key]:
        """Assemble linked traces as one. Return the traces of `drafts` that were assembled that way."""
        joined: set[Key] = set()
        parts = [draft.part for draft in drafts]
        for group in self._linker.groups(cursor, parts, lambda keys: _load_spans_of(cursor, keys)):
            members = [draft for draft in drafts if draft.key in group and draft.key not in joined]
            span_count = sum(len(spans) for spans in group.values())
            if span_count <= MAX_SPANS and self._join(cursor, result, group, members):
                joined.update(draft.key for draft in members)
        return joined

    def _join(
        self,
        cursor: duckdb.DuckDBPyConnection,
        result: AssemblyResult,
        group: Mapping[Key, Sequence[Span]],
        members: Sequence[_Draft],
    ) -> bool:
        """Assemble linked traces as one; `members` are the newly complete ones. Return False if that is impossible."""
        keys = list(group)
        exchanges_by_trace = _load_exchanges(cursor, keys)
        events_by_trace = _load_events(cursor, keys)
        earlier = [exchange for exchanges in exchanges_by_trace.values() for exchange in exchanges]
        earlier.sort(key=lambda exchange: (exchange.occurred_at, exchange.exchange_id))
        earlier_events = [event for events in events_by_trace.values() for event in events]
        records = [span for spans in group.values() for span in spans]
        assemblies: list[tuple[Assembly, Decision]] = []
        for draft in members:
            decision = draft.decision._replace(
                earlier=earlier, earlier_events=earlier_events, session=None, trace_id=draft.key[1]
            )
            assembly = self._assemble(result, records, decision)
            if assembly is None:
                return False
            assemblies.append((assembly, decision))
        (first, decision), *others = assemblies
        if self._add(result, first, decision, [draft.key for draft in members]):
            # The common records exist once; the completion of each trace is a decision of its own.
            result.assemblies += [assembly._replace(exchanges=[], events=[], ratings=[]) for assembly, _ in others]
        return True

    def _reviews(self, result: AssemblyResult) -> Iterator[Review]:
        """Yield reviews from the ratings of the traces that are numbers on their project's scale."""
        for assembly in result.assemblies:
            project = assembly.decision.project
            connection = assembly.decision.connection
            scale = self._engine.policy.for_project(project).settings.traces.ratings
            for rating in assembly.ratings:
                review = evaluator_score(connection, project, rating, scale, self._engine.now())
                if review is not None:
                    yield review

    def _assemble(self, result: AssemblyResult, records: Sequence[Span], decision: Decision) -> Assembly | None:
        """Assemble a trace; None if it cannot be assembled and becomes a dead letter."""
        if len(records) > MAX_SPANS:
            detail = f"trace {records[0].trace_id} has {len(records)} spans, more than the limit of {MAX_SPANS}: end its root span earlier"
            self._reject(result, records[0], TOO_MANY, detail)
            return None
        try:
            return assemble(records, decision)
        except Exception as error:
            log.exception("trace %s cannot be assembled; it becomes a dead letter", records[0].trace_id)
            self._reject(result, records[0], "unassembled", str(error))
            return None

    def _add(self, result: AssemblyResult, assembly: Assembly, decision: Decision, keys: Sequence[Key]) -> bool:
        """Revise an assembly's exchanges and add it. Return False if it is deferred, together with these traces."""
        revised = self._revise(result, assembly, decision)
        if revised is None:
            result.deferred.update(keys)
            return False
        result.assemblies.append(revised)
        return True

    def _revise(self, result: AssemblyResult, assembly: Assembly, decision: Decision) -> Assembly | None:
        """Revise the stored exchanges of an assembly. Return it with only its new exchanges, or None if it must wait."""
        if not decision.earlier:
            return assembly
        engine = self._engine
        earlier = {exchange.exchange_id for exchange in decision.earlier}
        changed = [exchange for exchange in assembly.exchanges if exchange.exchange_id in earlier]
        revisions = revise(engine.store, engine.policy, changed, engine.now())
        if revisions.waiting:
            return None
        revised = [record for record in revisions.records if isinstance(record, JudgingRequest) or record.revision]
        refused = {record.exchange_id for record in revised if self._encode_admissible(result, record) is None}
        result.revised += [record for record in revised if record.exchange_id not in refused]
        return assembly._replace(
            exchanges=[exchange for exchange in assembly.exchanges if exchange.exchange_id not in earlier],
            decision=msgspec.structs.replace(
                assembly.decision, revised_exchanges=revisions.revised - assembly.decision.withdrawn_exchanges
            ),
        )

    def _encode_admissible(self, result: AssemblyResult, record: Record) -> bytes | None:
        """Encode a record; None if it may not be written and becomes a dead letter."""
        try:
            return encode_validated(record)
        except RecordError as error:
            self._reject(result, record, error.code, str(error))
            return None

    def _note_late(self, result: AssemblyResult, late: Sequence[Span]) -> None:
        """Report spans that arrived after the earlier spans of their trace were deleted."""
        if not late:
            return
        detail = (
            f"{len(late)} spans of trace {late[0].trace_id} arrived after the trace's earlier spans expired and were dropped; "
            "export spans within one day"
        )
        self._reject(result, late[0], LATE, detail)
        result.late += len(late)
        log.warning("%s", detail)

    def _reject(self, result: AssemblyResult, record: Record, reason: str, detail: str) -> None:
        """Add the dead letter of a record that cannot be assembled or written."""
        admission = Admission(self._engine.redactor, self._engine.now())
        admission.add_dead_letter(
            result.dead_letters, RecordOrigin("traces", 0), Refusal(self.name, reason, detail), json_bytes(record)
        )

    def _renumber_new(self, events: Sequence[AgentEvent]) -> list[AgentEvent]:
        """Return the events that the tables do not have, numbered after the stored events of their sessions."""
        renumbered: list[AgentEvent] = []
        by_connection: dict[str, list[AgentEvent]] = defaultdict(list)
        for event in events:
            by_connection[event.connection].append(event)
        with contextlib.closing(self._engine.store.cursor()) as cursor:
            for connection, connection_events in by_connection.items():
                values = {
                    "connection": connection,
                    "sessions": [event.session_id for event in connection_events],
                    "event_ids": [event.event_id for event in connection_events],
                }
                rows = {row["session_id"]: row for row in query_rows(cursor, "session_positions", values)}
                renumbered += _renumber(connection_events, rows)
        return renumbered


def _renumber(events: Sequence[AgentEvent], rows: Mapping[str, Mapping[str, Any]]) -> Iterator[AgentEvent]:
    """Yield the events that are not stored, numbered after the stored ones; `rows` are the positions of the sessions."""
    next_seqs = {session: row["next_seq"] for session, row in rows.items()}
    stored = {session: frozenset(row["known"]) for session, row in rows.items()}
    for event in events:
        if event.event_id not in stored.get(event.session_id, ()):
            seq = next_seqs.get(event.session_id, 0)
            next_seqs[event.session_id] = seq + 1
            yield msgspec.structs.replace(event, seq=seq)


def _load_spans_of(cursor: duckdb.DuckDBPyConnection, keys: Sequence[Key]) -> dict[Key, list[Span]]:
    return _load_spans(cursor, _trace_parameters(keys), 0) if keys else {}


def _load_spans(
    cursor: duckdb.DuckDBPyConnection, parameters: dict[str, list[str]], first_offset: int
) -> dict[Key, list[Span]]:
    by_trace: dict[Key, list[Span]] = {}
    for span in query_records(cursor, "trace_spans", Span, {**parameters, "least": first_offset}):
        by_trace.setdefault((span.connection, span.trace_id), []).append(span)
    return by_trace


def _load_exchanges(cursor: duckdb.DuckDBPyConnection, keys: Sequence[Key]) -> dict[Key, list[Exchange]]:
    """Return the newest revisions of the exchanges of some traces; the oldest exchange of a trace first."""
    by_trace: dict[Key, list[Exchange]] = {}
    if keys:
        for exchange in query_records(cursor, "trace_exchanges", Exchange, _trace_parameters(keys)):
            trace_id = exchange.exchange_id.partition(":")[0]
            by_trace.setdefault((exchange.connection, trace_id), []).append(exchange)
    return by_trace


def _load_events(cursor: duckdb.DuckDBPyConnection, keys: Sequence[Key]) -> dict[Key, list[EarlierEvent]]:
    """Return the events of some traces, in the order in which they were created."""
    by_trace: dict[Key, list[EarlierEvent]] = {}
    if keys:
        for row in query_rows(cursor, "trace_events", _trace_parameters(keys)):
            event = EarlierEvent(row["event_id"], msgspec.json.decode(row["payload"]))
            by_trace.setdefault(_key(row), []).append(event)
    return by_trace


def _trace_parameters(keys: Collection[Key]) -> dict[str, list[str]]:
    return {"connections": [connection for connection, _ in keys], "trace_ids": [trace_id for _, trace_id in keys]}


def _key(row: Mapping[str, Any]) -> Key:
    return row["connection"], row["trace_id"]


def _key_of_state(name: str) -> Key:
    """Return the trace of a state: connection names hold no slash."""
    connection, _, trace_id = name.partition("/")
    return connection, trace_id


def _open_trace(row: Mapping[str, Any]) -> OpenTrace:
    return OpenTrace(*(row[name] for name in OpenTrace.__struct_fields__))
