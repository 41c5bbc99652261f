# ruff: noqa: S608 - statements are built from names of ours; values are always parameters
"""Rules of retention as statements, by record type and in the order of deletion."""

from __future__ import annotations

from analytics.store.positions import PLACE

AT_ONCE = 200_000
"""Exchanges that are looked up together with what belongs to them, and other rows that are found at once."""
PLACES = ", ".join(PLACE)
_SAID_OF = "SELECT connection, exchange_id AS subject_id FROM"
PROJECTS = " UNION ".join(
    f"SELECT project FROM log.{table}"
    for table in (
        "exchanges", "agent_events", "scores", "judgements", "reservations", "reviews",
        "heartbeats", "diagnoses", "trace_assemblies", "session_closings", "evaluations", "evaluation_requests",
    )
)  # fmt: skip
CUTOFFS = """
CREATE OR REPLACE TEMP TABLE cutoffs AS
SELECT unnest($projects::VARCHAR[]) AS project, unnest($cutoffs::TIMESTAMP[]) AS cutoff
"""
DOOMED_OF_ALL = f"""
CREATE OR REPLACE TEMP TABLE doomed AS
WITH pending AS (
    SELECT connection, exchange_id FROM log.scoring_tasks WHERE _offset >= $tasks
    UNION ALL
    SELECT connection, exchange_id FROM log.judging_requests WHERE _offset >= $exchanges
)
SELECT connection, session_id, exchange_id, project, occurred_at, {PLACES}
FROM log.exchanges
JOIN cutoffs USING (project)
ANTI JOIN pending USING (connection, exchange_id)
WHERE occurred_at < cutoff AND _offset < $exchanges
"""
"""All exchanges that are to go, for a dry run."""
DOOMED = f"{DOOMED_OF_ALL}ORDER BY occurred_at\nLIMIT {AT_ONCE}"
OF_EXCHANGES = {
    "Review": f"""
        SELECT {PLACES} FROM log.reviews
        SEMI JOIN (SELECT score_id AS subject_id FROM log.scores SEMI JOIN doomed USING (connection, exchange_id)) USING (subject_id)
        WHERE kind = 'human_score'""",
    "Score": f"SELECT score_id, {PLACES} FROM log.scores SEMI JOIN doomed USING (connection, exchange_id)",
    "ScoringTask": f"SELECT {PLACES} FROM log.scoring_tasks SEMI JOIN doomed USING (connection, exchange_id)",
    "JudgingRequest": f"SELECT {PLACES} FROM log.judging_requests SEMI JOIN doomed USING (connection, exchange_id)",
    # A reservation without its judgement would be taken for a call that was cut off.
    "Reservation": f"SELECT {PLACES} FROM log.reservations SEMI JOIN ({_SAID_OF} doomed) USING (connection, subject_id)",
    "Judgement": f"SELECT {PLACES} FROM log.judgements SEMI JOIN ({_SAID_OF} doomed) USING (connection, subject_id)",
    "Exchange": f"SELECT connection, session_id, exchange_id, {PLACES} FROM doomed",
}
"""The records that are deleted with exchanges, in this order."""
_OLD = "JOIN cutoffs USING (project)"
_ONE_LEFT = (
    f"ANTI JOIN ({_SAID_OF} log.exchanges) USING (connection, subject_id) "
    "ANTI JOIN (SELECT connection, evaluation_id AS subject_id FROM log.evaluation_requests) USING (connection, subject_id)"
)
BY_AGE = {
    "Review": f"SELECT {PLACES} FROM log.reviews {_OLD} ANTI JOIN (SELECT score_id AS subject_id FROM log.scores) USING (subject_id) "
    "WHERE kind = 'human_score' AND occurred_at < cutoff",
    "Score": f"SELECT score_id, {PLACES} FROM log.scores {_OLD} ANTI JOIN log.exchanges USING (connection, exchange_id) "
    "WHERE exchange_at < cutoff",
    # What is evaluated again goes with what was asked, however old the answers are.
    "Evaluation": f"SELECT {PLACES} FROM log.evaluations {_OLD} "
    "LEFT JOIN (SELECT request_id, requested_at FROM log.evaluation_requests) USING (request_id) "
    "WHERE greatest(evaluated_at, requested_at) < cutoff",
    "EvaluationRequest": f"SELECT {PLACES} FROM log.evaluation_requests {_OLD} "
    "ANTI JOIN (SELECT request_id FROM log.evaluations) USING (request_id) WHERE requested_at < cutoff AND _offset < $requests",
    "Reservation": f"SELECT {PLACES} FROM log.reservations {_OLD} {_ONE_LEFT} WHERE reserved_at < cutoff",
    "Judgement": f"SELECT {PLACES} FROM log.judgements {_OLD} {_ONE_LEFT} WHERE judged_at < cutoff",
    "AgentEvent": f"SELECT connection, session_id, {PLACES} FROM log.agent_events {_OLD} WHERE occurred_at < cutoff AND _offset < $events",
    # Of a trace that was assembled the exchanges and events are kept: its spans are only there for those that come late.
    "Span": f"SELECT {PLACES} FROM log.spans WHERE ingested_at < $spans",
    "TraceAssembly": f"SELECT {PLACES} FROM log.trace_assemblies {_OLD} WHERE started_at < cutoff",
    "Heartbeat": f"SELECT {PLACES} FROM log.heartbeats {_OLD} WHERE occurred_at < cutoff",
    "Diagnosis": f"SELECT {PLACES} FROM log.diagnoses {_OLD} WHERE closed_at < cutoff",
    "SessionClosed": f"SELECT {PLACES} FROM log.session_closings {_OLD} ANTI JOIN log.exchanges USING (connection, session_id) "
    "ANTI JOIN log.agent_events USING (connection, session_id) WHERE closed_at < cutoff",
    "DeadLetter": f"SELECT {PLACES} FROM log.dead_letters WHERE rejected_at < $otherwise",
}
"""The records that are deleted by their own time, in this order: leftovers of exchanges, and those that belong to none."""
LETTER_REVIEWS = (
    f"SELECT {PLACES} FROM log.reviews ANTI JOIN (SELECT dead_letter_id AS subject_id FROM log.dead_letters) USING (subject_id) "
    "WHERE kind = 'dead_letter' AND occurred_at < $otherwise"
)
WITHOUT_EXCHANGE = """
SELECT project, exchange, {places} FROM log.{table}
ANTI JOIN (SELECT hash(connection, exchange_id) AS known FROM log.exchanges) ON hash(connection, exchange_id) = known
WHERE _offset < $unread
"""
"""By hashes, which take a fraction of the memory: a clash would only spare a row."""
GONE = """
WITH cut AS (
    SELECT key, split_part(key, '/', 1) AS connection, substr(key, instr(key, '/') + 1) AS session_id
    FROM log.stage_state
    WHERE stage = $cut
)
SELECT key FROM cut
ANTI JOIN log.exchanges USING (connection, session_id)
ANTI JOIN log.agent_events USING (connection, session_id)
"""
