"""Admission of spans: from what a request of OTLP holds to the records that may be written, whichever way it came."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from datetime import datetime
from typing import NamedTuple

from audit.policy.policy import Policy
from audit.redaction.redactor import Redactor
from audit.surrogates import json_bytes
from schemas.errors import RecordError
from schemas.records import Span
from streams.log.admission import admissible
from streams.sources.otlp.kept_spans import SpanOwner, span_record
from streams.sources.otlp.request import Found, Observed, Refused

log = logging.getLogger(__name__)
OwnerOf = Callable[[Observed], SpanOwner | None]
"""Finds the owner of a span; None where it is passed over."""


class AdmittedSpan(NamedTuple):
    """A span's record, and the record encoded."""

    record: Span
    message: bytes


def admitted(
    found: Found, owner_of: OwnerOf, policy: Policy, redactor: Redactor, now: datetime
) -> Iterator[AdmittedSpan | Refused]:
    """Yield what becomes of each span. A span that cannot be taken costs itself alone."""
    for observed in found:
        if isinstance(observed, Refused):
            yield observed
        elif (owner := owner_of(observed)) is not None:
            labels = policy.for_project(owner.project).settings.traces.labels
            try:
                record = span_record(observed, owner, redactor, now, labels)
                yield AdmittedSpan(record, admissible(record))
            except RecordError as error:
                yield Refused(f"{observed.span_id}: {error}", json_bytes(observed._asdict()))
            except MemoryError:
                raise
            except Exception as error:
                log.exception("the span %s of the trace %s cannot be read", observed.span_id, observed.trace_id)
                yield Refused(f"{observed.span_id}: cannot be read: {type(error).__name__}", json_bytes(observed._asdict()))
