"""A complete trace as records: exchanges, events, and the record of the decision that it is complete."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from msgspec.structs import replace

from audit.diagnosis.events import NormalisedEvent, normalise_event, normalise_payload, to_record
from audit.fingerprints import canonical_json, digest
from schemas.bounds.limits import is_too_deep
from schemas.records import AgentEvent, Exchange, Label, Span, TraceAssembly
from streams.sources.exchange_builder import Clean, Filing, ToldExchange, build_exchange
from streams.sources.openclaw.text import Unwrapped
from streams.sources.otlp.kept_spans import kept_span
from streams.sources.otlp.reading import TRUNCATED
from streams.sources.otlp.traces.earlier import EarlierEvent, with_earlier_ids, without_told
from streams.sources.otlp.traces.links import Links, links_of
from streams.sources.otlp.traces.trace import SESSION_FROM_TRACE, KeptSpan, Trace, place_of, without_evaluations
from streams.sources.otlp.traces.trace_events import TracedEvent, events_of
from streams.sources.otlp.traces.trace_exchanges import TracedExchange, exchanges_of, places_of
from streams.sources.otlp.traces.trace_ratings import TracedRating, ratings_of
from streams.sources.otlp.traces.unused_spans import EVALUATION, HELPER, NO_CONTENT, unused_spans

COMPLETE, CONTINUED, NOT_UNDERSTOOD, NO_MODEL = "complete", "continued", "not_understood", "no_model"
_NONE: Counter[str] = Counter()
_MARKER = re.compile(r"\[SECRET:([a-z][a-z0-9_]{0,31}):[0-9a-f]{8}\]")


class Assembly(NamedTuple):
    """The records that a trace was made into. The positions of the events count from 0 in each session."""

    exchanges: list[Exchange]
    """The present ones, whichever were made before, and then those that turned out to be part of another one: these are withdrawn."""
    events: list[AgentEvent]
    ratings: list[TracedRating]
    decision: TraceAssembly
    links: Links
    """What may link the trace to others."""


class Decision(NamedTuple):
    """That a trace is complete: why, when, and how often it was taken for complete before."""

    reason: str
    now: datetime
    revision: int = 0
    earlier: Sequence[Exchange] = ()
    """The exchanges that earlier revisions made, the oldest first."""
    told: Sequence[EarlierEvent] = ()
    """The events that earlier revisions made."""
    session: str | None = None
    """The session that earlier revisions filed all of the trace under, because no span named one."""
    trace_id: str | None = None
    """The trace that is complete, where there are spans of others that tell the same turns."""


def assemble(records: Sequence[Span], decision: Decision) -> Assembly:
    """Make a trace into records, with what traces that are linked to it tell of the same turns.

    The same spans give the same exchanges and events, whatever the order and however often they came.
    """
    first = min(records, key=place_of)
    kept = sorted(map(kept_span, records), key=place_of)
    trace_id = decision.trace_id or first.trace_id
    own = [span for span in kept if span.trace_id == trace_id]
    trace = Trace(first.trace_id, without_evaluations(kept), decision.session)
    earlier = {one.exchange_id: one for one in decision.earlier if not one.withdrawn}
    traced = exchanges_of(trace)
    named = {name: one for name, one in earlier.items() if not _is_misfiled(one, traced, decision)}
    traced, absorbed = with_earlier_ids(traced, named, {span.span_id for span in kept})
    absorbed |= earlier.keys() - named.keys()
    exchanges = [_exchange(one, first, decision.now) for one in traced]
    withdrawn = [replace(one, withdrawn=True, ingested_at=decision.now) for name, one in earlier.items() if name in absorbed]
    events = events_of(trace)
    ratings = list(ratings_of(trace, traced))
    said = [span.facts for span in trace.spans]
    used = {event.span.span_id for event in events} | {one.span.span_id for one in traced} | {one.span_id for one in ratings}
    return Assembly(
        exchanges=[*exchanges, *withdrawn],
        events=_event_records(trace, without_told(trace, events, decision.told), traced, first, decision.now),
        ratings=ratings,
        decision=TraceAssembly(
            connection=first.connection,
            project=first.project,
            agent=trace.agent_of(trace.spans[0]) if trace.spans else None,
            session_id=traced[0].session_id if traced else trace.session_of(trace.spans[0]) if trace.spans else first.trace_id,
            trace_id=trace_id,
            revision=decision.revision,
            reason=decision.reason,
            spans=len(own),
            exchanges=sum(one.exchange_id not in earlier for one in traced if one.span.trace_id == trace_id),
            kept_exchanges=0,
            withdrawn_exchanges=len(withdrawn),
            events=sum(event.span.trace_id == trace_id for event in events),
            state=_state(own, traced),
            unused_spans=unused_spans(own, used, trace.helper_ids, has_exchange=bool(traced)),
            truncated=any(TRUNCATED in facts.tags for facts in said),
            sampling_probability=next((facts.probability for facts in said if facts.probability is not None), None),
            started_at=own[0].started_at,
            ended_at=max(span.ended_at for span in own),
            assembled_at=decision.now,
        ),
        links=links_of(own),
    )


def _is_misfiled(exchange: Exchange, traced: Sequence[TracedExchange], decision: Decision) -> bool:
    """Tell whether an earlier exchange has the id of its trace for a session, and a trace that is linked to it names the session."""
    names_session = any(SESSION_FROM_TRACE not in one.tags for one in traced)
    return decision.trace_id is not None and SESSION_FROM_TRACE in exchange.tags and names_session


def _state(spans: Sequence[KeptSpan], traced: Sequence[TracedExchange]) -> str:
    """The state of a trace; of one that made no exchange the reason that its sender can do most about."""
    ids = {span.span_id for span in spans}
    if any(one.span.span_id in ids for one in traced):
        return COMPLETE
    if any(not ids.isdisjoint(one.within) for one in traced):
        return CONTINUED
    own = without_evaluations(spans)
    if not own:
        return EVALUATION
    kinds = {span.facts.kind for span in own}
    if any(span.facts.unknown is not None for span in own):
        return NOT_UNDERSTOOD
    return NO_CONTENT if kinds & {"inference", "agent"} else HELPER if "helper" in kinds else NO_MODEL


def _exchange(traced: TracedExchange, span: Span, now: datetime) -> Exchange:
    told = ToldExchange(
        exchange_id=traced.exchange_id,
        session_id=traced.session_id,
        at=traced.at,
        question=traced.question,
        answer=traced.answer,
        thinking=traced.thinking,
        agent=traced.agent,
        model=traced.model,
        input_tokens=traced.input_tokens,
        output_tokens=traced.output_tokens,
        stop_reason=traced.stop_reason,
        outcome=traced.outcome,
        tags=frozenset(traced.tags),
        labels=_labels(traced.labels),
    )
    filing = Filing(span.connection, span.project, now, _counted, unwrap=_as_it_is)

    def identify(clean: Clean) -> str:
        return digest(canonical_json([*clean, told.session_id, told.at.isoformat(), traced.labels]))

    return build_exchange(told, filing, identify)


def _counted(text: str) -> tuple[str, Counter[str]]:
    """The text, whose secrets were taken out when its span came in, and how many there were."""
    return text, Counter(_MARKER.findall(text)) if "[SECRET:" in text else _NONE


def _as_it_is(text: str) -> Unwrapped:
    return Unwrapped(text, multi_user=False)


def _labels(given: Mapping[str, str]) -> tuple[Label, ...]:
    return tuple(Label(name=name, value=value) for name, value in given.items())


def _event_records(
    trace: Trace, events: Iterable[TracedEvent], exchanges: Sequence[TracedExchange], span: Span, now: datetime
) -> list[AgentEvent]:
    counts: Counter[str] = Counter()
    filings = _Filings(trace, exchanges)
    made = []
    for event in events:
        filed = filings[event.span]
        session = filed.session_id
        normalised = _normalised(event, filed, counts[session])
        made.append(
            to_record(
                normalised,
                connection=span.connection,
                project=span.project,
                agent=filed.agent,
                session_id=session,
                seq=counts[session],
                occurred_at=event.at,
                ingested_at=now,
                payload_json=canonical_json(normalised.payload),
                labels=filed.labels,
            )
        )
        counts[session] += 1
    return made


def _normalised(event: TracedEvent, filed: _Filed, seq: int) -> NormalisedEvent:
    payload = event.said if filed.exchange_id is None else {**event.said, "exchange_id": filed.exchange_id}
    # What was read of a record's JSON can be written as JSON, if it is not too deep for one.
    return normalise_event(payload, seq) if is_too_deep(payload) else normalise_payload(payload, seq)


class _Filed(NamedTuple):
    """The fields that the events of a span have in common."""

    session_id: str
    agent: str | None
    exchange_id: str | None
    labels: tuple[Label, ...]


class _Filings:
    """The fields that the events of each span have in common, found once for each span."""

    def __init__(self, trace: Trace, exchanges: Sequence[TracedExchange]) -> None:
        self._trace = trace
        self._places = places_of(exchanges)
        self._ids = [one.exchange_id for one in exchanges]
        self._found: dict[str, _Filed] = {}

    def __getitem__(self, span: KeptSpan) -> _Filed:
        found = self._found.get(span.span_id)
        if found is None:
            trace, place = self._trace, self._places.get(span.span_id)
            found = self._found[span.span_id] = _Filed(
                trace.session_of(span),
                trace.agent_of(span),
                None if place is None else self._ids[place],
                _labels(trace.labels_of(span)),
            )
        return found
