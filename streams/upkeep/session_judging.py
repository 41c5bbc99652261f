"""Judging whole sessions: requests to evaluate ended sessions without a written case; see `audit.evaluation.whole_sessions`.

1. A request holds everything that the judge is shown, of exchanges and of events. No stage reads both topics, so the serving process
   makes the request from the tables and records it, as it does for the end of an idle session. A replay reads the recorded requests.
2. There is one request for each end, and its id is that of the end. Before it looks for ends without one, the task waits for the
   tables to have its earlier requests, so a restart repeats none.
3. An end is settled after a minute, when the last records of the session have arrived. An end more than a day old is history, such as
   an import or the time before the policy asked for judging, and is not paid for.
4. Without a judge no request is made. A request counts as recorded, so it would fail and never be made again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any

from analytics.queries import query_rows
from audit.anchors import is_reserved
from audit.evaluation.whole_sessions import MAX_AGE, evaluation_of_session, is_drawn, session_plan, session_request
from schemas.records import EvaluationRequest
from streams.engine.record_intake import RecordIntake
from streams.finished_sessions import FinishedSession, read_runs
from streams.judging.judged_stages import EVALUATION, judgement_reader
from streams.stage_batches import session_key

SETTLE = timedelta(minutes=1)
"""Time after an end in which late records of the session arrive."""
BATCH_SIZE = 50
"""Requests in one commit; each has a prompt of up to some hundred kilobytes."""
LIVE = "live"
"""Name of a judge that is not simulated."""
_AWAITED_TOPICS = ("exchanges", "agent-events", "diagnoses", "judgements", EVALUATION.source)
log = logging.getLogger(__name__)


class SessionJudging:
    """Requests the judging of ended sessions; a `streams.upkeep.periodic_tasks.PeriodicTask`."""

    name = "session judging"
    interval = 60.0

    def __init__(self, engine: RecordIntake) -> None:
        self._engine = engine

    async def run(self) -> None:
        """Request the judging of the sessions that have ended since the last run."""
        policy = self._engine.policy
        samples = [policy.for_project(name).settings.session_judging.sample for name in ("", *policy.projects)]
        if not self._engine.has_judge or not any(samples):
            return
        for topic in _AWAITED_TOPICS:
            await self._engine.wait_for_tables(topic)
        rows = await asyncio.to_thread(self._select_sessions)
        for start in range(0, len(rows), BATCH_SIZE):
            requests = await asyncio.to_thread(list, self._build_requests(rows[start : start + BATCH_SIZE]))
            await self._engine.publish(EVALUATION.source, requests)
        if rows:
            log.info("judging %d ended sessions as a whole", len(rows))

    def _select_sessions(self) -> list[dict[str, Any]]:
        """Return the drawn sessions with an end that was not requested yet."""
        now = self._engine.now()
        with contextlib.closing(self._engine.store.cursor()) as cursor:
            rows = query_rows(cursor, "unjudged_sessions", {"since": now - MAX_AGE, "until": now - SETTLE})
        return [row for row in rows if self._is_drawn(row)]

    def _is_drawn(self, row: dict[str, Any]) -> bool:
        settings = self._engine.policy.for_project(row["project"]).settings
        if not settings.enabled or is_reserved(row["project"]):
            return False
        return is_drawn(session_key(row["connection"], row["session_id"]), settings.session_judging.sample)

    def _build_requests(self, rows: Sequence[dict[str, Any]]) -> Iterator[EvaluationRequest]:
        """Yield the request for each session."""
        engine = self._engine
        subjects = [(row["connection"], evaluation_of_session(row["connection"], row["session_id"])) for row in rows]
        recorded = judgement_reader(engine.store)(subjects)
        sessions = [FinishedSession(row["connection"], row["project"], row["session_id"], row["ended_at"]) for row in rows]
        with contextlib.closing(engine.store.cursor()) as cursor:
            runs = read_runs(cursor, sessions, engine.policy)
            for row, subject, (run, warnings) in zip(rows, subjects, runs, strict=True):
                project = engine.policy.for_project(row["project"])
                yield session_request(
                    run,
                    session_plan(project, takes_simulated=engine.judge_name != LIVE),
                    end=row["last_end"],
                    probability=project.settings.session_judging.sample,
                    earlier=recorded.get(subject, ()),
                    at=engine.now(),
                    warnings=warnings,
                )
