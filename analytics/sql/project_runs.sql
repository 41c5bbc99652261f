-- purpose: a page of the runs of a project with their verdicts, the one that was finished last first
-- grain: one row a run, that is a finalized session; ids count up within a project
-- parameters: $project, $before (number of a run: only earlier ones; NULL: from the newest), $readiness (only runs of this level; NULL: all), $limit
WITH levels AS (
    SELECT connection, session_id
    FROM log.diagnoses
    WHERE $readiness IS NOT NULL
    GROUP BY connection, session_id
    HAVING arg_max(readiness_level, (revision, _offset)) = $readiness
), page AS (
    SELECT connection, session_id, number
    FROM log.run_numbers
    SEMI JOIN log.diagnoses USING (connection, session_id)
    WHERE project = $project AND ($before IS NULL OR number < $before)
        AND ($readiness IS NULL OR EXISTS (FROM levels AS l WHERE l.connection = run_numbers.connection AND l.session_id = run_numbers.session_id))
    ORDER BY number DESC
    LIMIT $limit
), latest AS (
    SELECT d.*
    FROM log.diagnoses AS d
    SEMI JOIN page USING (connection, session_id)
    QUALIFY row_number() OVER (PARTITION BY connection, session_id ORDER BY revision DESC, _offset DESC) = 1
)
SELECT
    n.number, printf('run_%03d', n.number) AS run_id, $project AS project, d.agent, n.connection, n.session_id, d.started_at, d.ended_at,
    d.closed_at, d.trust_score, d.readiness_level, d.primary_failure_type, d.primary_severity,
    coalesce(list_sum([c.count FOR c IN d.event_counts IF c.event = 'tool_call']), 0)::BIGINT AS tool_calls, d.event_count
FROM page AS n
JOIN latest AS d USING (connection, session_id)
ORDER BY n.number DESC
