-- purpose: a page of the runs of a project with their verdicts, the one that was finished last first
-- grain: one row a run, that is a finalized session; ids count up within a project
-- parameters: $project, $before (number of a run: only earlier ones; NULL: from the newest), $limit
WITH finished AS (
    SELECT connection, session_id, arg_min(project, _offset) AS project, min(_offset) AS first_offset
    FROM log.diagnoses
    GROUP BY ALL
), numbered AS (
    SELECT
        project, connection, session_id,
        row_number() OVER (PARTITION BY project ORDER BY first_offset, connection, session_id) AS number
    FROM finished
)
SELECT
    n.number, printf('run_%03d', n.number) AS run_id, n.project, d.agent, n.connection, n.session_id, d.started_at, d.ended_at,
    d.closed_at, d.trust_score, d.readiness_level, d.primary_failure_type, d.primary_severity,
    coalesce(list_sum([c.count FOR c IN d.event_counts IF c.event = 'tool_call']), 0)::BIGINT AS tool_calls, d.event_count
FROM numbered AS n
JOIN diagnoses AS d USING (connection, session_id)
WHERE n.project = $project AND ($before IS NULL OR n.number < $before)
ORDER BY n.number DESC
LIMIT $limit
