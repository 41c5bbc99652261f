"""Judges whose last answers cannot be read, from what is recorded of their calls: the same embedded and on Kafka, in any process."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from analytics.queries import query_rows
from schemas.lazy.duckdb import duckdb
from streams.judges.rate_limits import MAX_UNREADABLE

RECENT = timedelta(days=1)
"""A model that was not asked for longer may have been replaced; one that is left alone is asked every ten minutes, if anything waits."""


@dataclass(frozen=True, slots=True)
class UnreadableJudge:
    """A model whose last answers cannot be read."""

    model: str
    questions: int
    """Those that ended so, in a row."""
    since: datetime
    """The time of the first of them."""
    last_at: datetime
    error: str | None
    """What was wrong with the last one; it may quote the server, without secrets."""

    @property
    def summary(self) -> str:
        """Say what is wrong, and since when."""
        reason = f": {self.error}" if self.error else ""
        return f"The last {self.questions} answers of the judge {self.model} cannot be read, since {self.since:%Y-%m-%d %H:%M} UTC{reason}"

    @property
    def consequence(self) -> str:
        """Say what becomes of the exchanges, and what to do."""
        return (
            "It is left alone for a while and then asked with one question at a time, at least every ten minutes: what is to be judged "
            "waits, and is judged when its answers can be read again. Exchanges that it was asked about are unscored: driftline rejudge "
            "has them judged again. See to the model and to the address of the judge: driftline doctor"
        )


def unreadable_judges(cursor: duckdb.DuckDBPyConnection, project: str | None, now: datetime) -> tuple[UnreadableJudge, ...]:
    """Return the models whose last answers in a project (None: all) cannot be read."""
    values = {"project": project, "least": MAX_UNREADABLE, "from": now - RECENT}
    return tuple(UnreadableJudge(**row) for row in query_rows(cursor, "unreadable_judges", values))
