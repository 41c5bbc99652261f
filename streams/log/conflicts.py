"""Records whose identity the log has with other content: they are set aside, wherever that is found out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from analytics.store.transaction import CONTENT
from audit.diagnosis.duplicate_rules import named_differences
from audit.fingerprints import canonical_json
from schemas.records import Record
from schemas.registry import schema_of
from streams.log.admission import Accepted, Admission, Place, Refusal

TO_DO = "Where it is the same thing, there is nothing to do; where it is another one, give it an id of its own and deliver it again."
"""What whoever delivered it can do."""


def set_aside_conflict(admission: Admission, letters: Accepted, topic: str, record: Record, differing: Sequence[str]) -> None:
    """Keep a record whose identity the topic has with other content; `differing` are the fields that differ.

    Where it came from is not known everywhere, and when it was taken in differs from delivery to delivery: what it is and what it
    says tell it from others.
    """
    name = type(record).__name__
    identity = {field: getattr(record, field) for field in schema_of(name).identity}
    named = ", ".join(f"{field} {value!r}" for field, value in identity.items())
    detail = f"{name} {named}: the log holds it with other content{named_differences(differing)}, which stays. {TO_DO}"
    said = canonical_json([name, *identity.values(), getattr(record, CONTENT[name])])
    admission.set_aside(
        letters,
        Place(topic, 0),
        Refusal("admission", "conflicting_id", detail),
        msgspec.json.encode(record),
        digest=hashlib.sha256(said.encode()).hexdigest(),
    )
