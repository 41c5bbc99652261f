"""Groups of submissions: which may go into the write-ahead log, and which the event loop commits itself."""

from __future__ import annotations

from collections.abc import Sequence

from analytics.deletion.erased import ERASURES
from streams.log.admission import Submission
from streams.log.write_ahead import INTAKE

AT_HAND, UNREAD_AT_HAND = 128, 1_000
"""Records of a group that the event loop commits itself: those that intake decides on, and others, such as spans; some 15 ms at most.

A commit of the thread waits for the landing that is under way, one of the event loop does not.
"""
READ_BACK = frozenset({ERASURES, "anchors", "baselines", "incidents"})
"""Topics whose records go to the tables at once: whoever writes one reads them there for the next one."""


def is_direct(submission: Submission) -> bool:
    """Whether it may go into the write-ahead log: records from outside that no one reads back at once, or what a judged stage made."""
    if submission.records:
        return submission.records.keys().isdisjoint(READ_BACK)
    return bool(submission.made.records or submission.stage is not None)


def are_few(group: Sequence[Submission]) -> bool:
    """Whether the event loop has committed the records of the group before anybody notices."""
    counts = [(topic == INTAKE.source, len(records)) for one in group for topic, records in one.records.items()]
    read = sum(count for is_read, count in counts if is_read)
    return read <= AT_HAND and sum(count for _, count in counts) - read <= UNREAD_AT_HAND
