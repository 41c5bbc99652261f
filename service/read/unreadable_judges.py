"""Judges whose last answers cannot be read, found in the records of their calls, so in any process, embedded or on Kafka."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from analytics.queries import query_rows
from schemas.lazy import duckdb
from streams.judges.rate_limits import MAX_UNREADABLE

RECENT = timedelta(days=1)
"""The period covered: a model not asked for longer may have been replaced. A paused model is asked every ten minutes if exchanges wait."""


@dataclass(frozen=True, slots=True)
class UnreadableJudge:
    """A model whose last answers cannot be read."""

    model: str
    questions: int
    """The number of consecutive unreadable answers."""
    since: datetime
    """The time of the first of them."""
    last_at: datetime
    error: str | None
    """What was wrong with the last one; it may quote the server, without secrets."""

    @property
    def summary(self) -> str:
        """Describe the problem and its beginning."""
        reason = f": {self.error}" if self.error else ""
        return f"The last {self.questions} answers of the judge {self.model} cannot be read, since {self.since:%Y-%m-%d %H:%M} UTC{reason}"

    @property
    def consequence(self) -> str:
        """Describe the effect on exchanges, and the remedy."""
        return (
            "It is left alone for a while and then asked with one question at a time, at least every ten minutes: what is to be judged "
            "waits, and is judged when its answers can be read again. Exchanges that it was asked about are unscored: driftline rejudge "
            "has them judged again. See to the model and to the address of the judge: driftline doctor"
        )


def unreadable_judges(cursor: duckdb.DuckDBPyConnection, project: str | None, now: datetime) -> tuple[UnreadableJudge, ...]:
    """Return the models whose last answers in a project (None: all) cannot be read."""
    values = {"project": project, "least": MAX_UNREADABLE, "from": now - RECENT}
    return tuple(UnreadableJudge(**row) for row in query_rows(cursor, "unreadable_judges", values))
