"""The current row of an identity: the rule that views, snapshots, exports and queries share."""

from __future__ import annotations

from schemas.registry import RecordSchema

FINISHED_FIRST = "status = 'completed' DESC"
"""Puts evaluations that finished before those that failed: a failed attempt hides no finished evaluation."""
_PREFERRED = {"evaluations": FINISHED_FIRST}


def current_first(schema: RecordSchema) -> str:
    """The order that puts the current one first of the rows of one identity; for a record type that has several rows of one."""
    if not schema.has_revisions:
        return "_topic, _offset DESC"
    order = "revision DESC, _offset DESC"
    return f"{_PREFERRED[schema.table]}, {order}" if schema.table in _PREFERRED else order
