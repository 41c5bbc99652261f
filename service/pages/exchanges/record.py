"""All records of one exchange, read at once."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from analytics.queries import query_records, query_rows
from schemas.lazy import duckdb
from schemas.records import Exchange, Judgement, Score
from service.read.people import HumanScore, ScoreTimes, human_scores

Row = dict[str, Any]
_AROUND = timedelta(days=1)
"""A score is as old as its newest judgement; clocks of machines differ by less than this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExchangeRecord:
    """An exchange with all records derived from it."""

    revisions: list[Score]
    """The revisions of its score, the current one first; at least one."""
    exchange: Exchange | None
    """None if it was deleted."""
    judgements: list[Judgement]
    """All questions to the judge about it, in order."""
    people: list[HumanScore]
    """Human scores, newest first."""
    before: Row | None
    """The exchange before it in its session, as a row of `session_neighbours`."""
    after: Row | None
    run: str | None
    """The run of its session."""

    @property
    def score(self) -> Score:
        """The current score."""
        return self.revisions[0]


def exchange_record(
    cursor: duckdb.DuckDBPyConnection, project: str, score_id: str, at: datetime | None, times: ScoreTimes
) -> ExchangeRecord | None:
    """Return the exchange of a project's score; None if the project has no score of this id.

    `at` is the exchange's time if known, which makes the look-up fast; otherwise `times` finds it.
    """
    revisions = revisions_of(cursor, project, score_id, at, times)
    if not revisions:
        return None
    score = revisions[0]
    session = {"connection": score.connection, "session": score.session_id}
    place = {"project": project, "at": score.exchange_at, "turn": score.turn_number, "score": score_id}
    sides = {row["is_after"]: row for row in query_rows(cursor, "session_neighbours", session | place)}
    runs = [row["run_id"] for row in query_rows(cursor, "session_run", session) if row["project"] == project]
    return ExchangeRecord(
        revisions=revisions,
        exchange=exchange_of(cursor, score),
        judgements=judgements_of(cursor, revisions),
        people=human_scores(cursor, project, score_id),
        before=sides.get(False),
        after=sides.get(True),
        run=runs[0] if runs else None,
    )


def revisions_of(
    cursor: duckdb.DuckDBPyConnection, project: str, score_id: str, at: datetime | None, times: ScoreTimes
) -> list[Score]:
    """Return the revisions of a score, the current one first; a wrong time only makes the look-up slower."""
    if at is not None and (found := _revisions_at(cursor, project, score_id, at)):
        return found
    known = times.find(cursor, project, score_id)
    if known is None:
        return []
    # An id that was erased and sent again may have another time than the cached one.
    return _revisions_at(cursor, project, score_id, known) or _revisions_at(cursor, project, score_id, None)


def _revisions_at(cursor: duckdb.DuckDBPyConnection, project: str, score_id: str, at: datetime | None) -> list[Score]:
    return list(query_records(cursor, "score_revisions", Score, {"project": project, "score": score_id, "at": at}))


def exchange_of(cursor: duckdb.DuckDBPyConnection, score: Score) -> Exchange | None:
    """Return the exchange of a score; None if it was deleted."""
    named = {"connection": score.connection, "exchange": score.exchange_id, "at": score.exchange_at}
    found = query_records(cursor, "exchange_of", Exchange, named)
    return next((one for one in found if one.project == score.project), None)


def judgements_of(cursor: duckdb.DuckDBPyConnection, revisions: list[Score]) -> list[Judgement]:
    """Return the questions to the judge about the exchange of a score with their outcomes, by all revisions of the score."""
    score, scored = revisions[0], [revision.scored_at for revision in revisions]
    time = {"since": min(score.exchange_at, *scored) - _AROUND, "until": max(scored) + _AROUND}
    named = {"connection": score.connection, "subject": score.exchange_id}
    return list(query_records(cursor, "judgements_on", Judgement, named | time))
