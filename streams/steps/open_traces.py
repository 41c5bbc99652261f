"""Open traces: the state of an incomplete trace in the stage of traces."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from audit.policy import Traces

SETTLED, IDLE = "settled", "idle"


class OpenTrace(msgspec.Struct, frozen=True, array_like=True):
    """A trace with spans that were not assembled yet: a summary, without the spans themselves."""

    project: str
    last_at: datetime
    """The time when the last of its spans arrived."""
    has_root: bool
    spans: int
    first_offset: int
    """The lowest offset of a span on any partition: a later span may have a lower offset."""

    def followed_by(self, further: OpenTrace) -> OpenTrace:
        """The trace after further spans. Spans that are added twice change nothing but their number."""
        return OpenTrace(
            self.project,
            max(self.last_at, further.last_at),
            self.has_root or further.has_root,
            self.spans + further.spans,
            min(self.first_offset, further.first_offset),
        )

    def completion(self, rules: Traces) -> tuple[datetime, str]:
        """The time when it is complete if no more spans arrive, and the reason."""
        if self.has_root and rules.settle_seconds <= rules.idle_seconds:
            return self.last_at + timedelta(seconds=rules.settle_seconds), SETTLED
        return self.last_at + timedelta(seconds=rules.idle_seconds), IDLE
