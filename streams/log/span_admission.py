"""Admission of spans: from what a request of OTLP holds to the records that may be written, whichever way it came."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, ParamSpec, TypeVar

from audit.redaction import Redactor
from audit.surrogates import json_bytes
from schemas.errors import RecordError
from schemas.records import Span
from streams.log.admission import admissible
from streams.sources.otlp.kept_spans import SpanDraft, SpanOwner, draft_of, record_of
from streams.sources.otlp.reading import FactReader
from streams.sources.otlp.request import Observed, ReadItems, Refused

if TYPE_CHECKING:  # a process that maps spans alone does without the models of policies
    from audit.policy.policy import Policy

TOGETHER = 100
"""Spans that a first look for secrets is taken at together."""
PROJECTS = 100
"""Projects of a request whose readers are remembered."""
Made = TypeVar("Made")
Given = ParamSpec("Given")
log = logging.getLogger(__name__)
OwnerOf = Callable[[Observed], SpanOwner | None]
"""Finds the owner of a span; None where it is passed over."""
LabelsOf = Callable[[str], Mapping[str, Sequence[str]]]
"""Finds a project's labels, each with the attributes that tell it."""


class AdmittedSpan(NamedTuple):
    """A span's record, and the record encoded."""

    record: Span
    message: bytes


def labels_of(policy: Policy) -> LabelsOf:
    """Return what finds a project's labels in a policy."""
    return lambda project: policy.for_project(project).settings.traces.labels


def admitted(
    items: ReadItems, owner_of: OwnerOf, labels: LabelsOf, redactor: Redactor, now: datetime
) -> Iterator[AdmittedSpan | Refused]:
    """Yield what becomes of each span, in order. A span that cannot be taken costs itself alone."""
    reader_of = lru_cache(PROJECTS)(lambda project: FactReader(labels(project)))
    while some := list(islice(items, TOGETHER)):
        drafts = [draft for observed in some if (draft := _draft(observed, owner_of, reader_of)) is not None]
        looked = _having_looked(redactor, drafts)
        for draft in drafts:
            yield draft if isinstance(draft, Refused) else _guarded(draft.observed, _admitted, draft, looked, now)


def _draft(
    observed: Observed | Refused | None, owner_of: OwnerOf, reader_of: Callable[[str], FactReader]
) -> SpanDraft | Refused | None:
    """The draft of a span; None where it is passed over."""
    if observed is None or isinstance(observed, Refused):
        return observed
    owner = owner_of(observed)
    if owner is None:
        return None
    return _guarded(observed, draft_of, observed, owner, reader_of(owner.project))


def _having_looked(redactor: Redactor, drafts: Iterable[SpanDraft | Refused]) -> Redactor:
    """The redactor after a first look at what the drafts tell: most of it holds nothing, and the same texts come again and again."""
    texts, named = list[str](), list[str]()
    for draft in drafts:
        if isinstance(draft, SpanDraft):
            texts += draft.texts
            named += draft.named
    return redactor.having_looked(texts, named=named)


def _admitted(draft: SpanDraft, redactor: Redactor, now: datetime) -> AdmittedSpan:
    record = record_of(draft, redactor, now)
    return AdmittedSpan(record, admissible(record))


def _guarded(observed: Observed, make: Callable[Given, Made], *given: Given.args, **named: Given.kwargs) -> Made | Refused:
    """What is made of a span, or why it is refused."""
    try:
        return make(*given, **named)
    except RecordError as error:
        return Refused(f"{observed.span_id}: {error}", json_bytes(observed._asdict()))
    except MemoryError:
        raise
    except Exception as error:
        log.exception("the span %s of the trace %s cannot be read", observed.span_id, observed.trace_id)
        return Refused(f"{observed.span_id}: cannot be read: {type(error).__name__}", json_bytes(observed._asdict()))
