"""Open traces: what the stage of traces keeps of a trace until it is complete."""

from __future__ import annotations

from datetime import datetime, timedelta

import msgspec

from audit.policy.policy import Traces

SETTLED, IDLE = "settled", "idle"


class OpenTrace(msgspec.Struct, frozen=True, array_like=True):
    """A trace with spans that nothing was made of yet. It tells what came of it, but for the spans themselves."""

    project: str
    last_at: datetime
    """When the last of its spans came."""
    has_root: bool
    spans: int
    first_offset: int
    """The lowest offset of a span, on whichever partition: what comes later may stand before what was there."""

    def followed_by(self, further: OpenTrace) -> OpenTrace:
        """The trace after further spans of it came. Taken in again, these change nothing but their number."""
        return OpenTrace(
            self.project,
            max(self.last_at, further.last_at),
            self.has_root or further.has_root,
            self.spans + further.spans,
            min(self.first_offset, further.first_offset),
        )

    def completion(self, rules: Traces) -> tuple[datetime, str]:
        """When it is complete if nothing more comes, and why."""
        if self.has_root and rules.settle_seconds <= rules.idle_seconds:
            return self.last_at + timedelta(seconds=rules.settle_seconds), SETTLED
        return self.last_at + timedelta(seconds=rules.idle_seconds), IDLE
