-- purpose: the runs of an agent up to one of them, the latest first: how it did before
-- grain: one row a run
-- parameters: $project, $agent (NULL for runs whose agent nobody named), $number (of the last run), $limit
WITH runs AS (
    SELECT connection, session_id, number FROM log.run_numbers WHERE project = $project AND number <= $number
), latest AS (
    SELECT connection, session_id, max((revision, _offset)) AS version
    FROM log.diagnoses
    SEMI JOIN runs USING (connection, session_id)
    GROUP BY connection, session_id
)
SELECT
    n.number, printf('run_%03d', n.number) AS run_id, coalesce(d.ended_at, d.closed_at) AS ended_at, d.trust_score,
    d.readiness_level, d.primary_failure_type
FROM runs AS n
JOIN latest AS l USING (connection, session_id)
JOIN log.diagnoses AS d
    ON d.connection = n.connection AND d.session_id = n.session_id AND (d.revision, d._offset) = l.version
WHERE d.agent IS NOT DISTINCT FROM $agent
ORDER BY n.number DESC
LIMIT $limit
