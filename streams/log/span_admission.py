"""Admission of spans from OTLP requests, for HTTP, gRPC and the collector's topics on Kafka."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

from audit.redaction import Redactor
from audit.surrogates import json_bytes
from schemas.errors import RecordError
from schemas.records import Span
from streams.log.admission import encode_validated
from streams.sources.otlp.reading import FactReader
from streams.sources.otlp.received import ReceivedItems, ReceivedSpan, RejectedItem
from streams.sources.otlp.stored_spans import SpanDraft, SpanOwner, build_draft, build_record

if TYPE_CHECKING:
    from audit.policy import Policy

SPAN_BATCH_SIZE = 100
"""Spans that are prefiltered for secrets together."""
MAX_CACHED_READERS = 100
"""Projects whose readers are cached per request."""
Result = TypeVar("Result")
Parameters = ParamSpec("Parameters")
log = logging.getLogger(__name__)
OwnerOf = Callable[[ReceivedSpan], SpanOwner | None]
"""Returns the owner of a span; None to skip the span."""
ReaderOf = Callable[[str], FactReader]
"""Returns a new reader of the facts of a project's spans."""


class AdmittedSpan(NamedTuple):
    """A span's record, and its encoding."""

    record: Span
    message: bytes


def readers_of(policy: Policy) -> ReaderOf:
    """Return a function that makes the reader of a project's spans by a policy."""

    def build_reader(project: str) -> FactReader:
        settings = policy.for_project(project).settings
        return FactReader(settings.traces.labels, reads_definitions=settings.detectors.reads_definitions)

    return build_reader


def admit_spans(
    items: ReceivedItems, owner_of: OwnerOf, readers: ReaderOf, redactor: Redactor, now: datetime
) -> Iterator[AdmittedSpan | RejectedItem]:
    """Yield the result of each span, in order; skipped spans have none. A span that cannot be stored affects no other."""
    reader_of = lru_cache(MAX_CACHED_READERS)(readers)
    while batch := list(islice(items, SPAN_BATCH_SIZE)):
        drafts: list[SpanDraft | RejectedItem] = []
        for received in batch:
            draft = _draft_span(received, owner_of, reader_of)
            if draft is not None:
                drafts.append(draft)
        prefiltered = _prefilter_texts(redactor, drafts)
        for draft in drafts:
            yield (
                draft
                if isinstance(draft, RejectedItem)
                else _call_guarded(draft.received, _admit_draft, draft, prefiltered, now)
            )


def _draft_span(
    received: ReceivedSpan | RejectedItem | None, owner_of: OwnerOf, reader_of: Callable[[str], FactReader]
) -> SpanDraft | RejectedItem | None:
    """Return the draft of a span; None if the span is skipped."""
    if received is None or isinstance(received, RejectedItem):
        return received
    owner = owner_of(received)
    if owner is None:
        return None
    return _call_guarded(received, build_draft, received, owner, reader_of(owner.project))


def _prefilter_texts(redactor: Redactor, drafts: Iterable[SpanDraft | RejectedItem]) -> Redactor:
    """Return the redactor after one prefilter run over the texts of the drafts: most texts have no secret, and many are repeated."""
    texts: list[str] = []
    json_texts: list[str] = []
    for draft in drafts:
        if isinstance(draft, SpanDraft):
            texts += draft.texts
            json_texts += draft.named
    return redactor.with_prefilter(texts, json_texts=json_texts)


def _admit_draft(draft: SpanDraft, redactor: Redactor, now: datetime) -> AdmittedSpan:
    record = build_record(draft, redactor, now)
    return AdmittedSpan(record, encode_validated(record))


def _call_guarded(
    received: ReceivedSpan,
    function: Callable[Parameters, Result],
    *arguments: Parameters.args,
    **options: Parameters.kwargs,
) -> Result | RejectedItem:
    """Call a function for a span, and return its result, or the reason why the span is refused."""
    try:
        return function(*arguments, **options)
    except RecordError as error:
        return RejectedItem(f"{received.span_id}: {error}", json_bytes(received._asdict()))
    except MemoryError:
        raise
    except Exception as error:
        log.exception("span %s of trace %s cannot be read", received.span_id, received.trace_id)
        return RejectedItem(f"{received.span_id}: cannot be read: {type(error).__name__}", json_bytes(received._asdict()))
