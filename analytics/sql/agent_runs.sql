-- purpose: the runs of an agent up to one of them, the one that ended last first: how it did before
-- grain: one row a run
-- parameters: $project, $agent (NULL for runs whose agent nobody named), $number (of the last run), $limit
WITH runs AS (
    SELECT connection, session_id, number FROM log.run_numbers WHERE project = $project
), latest AS (
    SELECT
        connection, session_id, max((revision, _offset)) AS version,
        arg_max(coalesce(ended_at, closed_at), (revision, _offset)) AS last_at, arg_max({'name': agent}, (revision, _offset)).name AS agent
    FROM log.diagnoses
    SEMI JOIN runs USING (connection, session_id)
    GROUP BY connection, session_id
), wanted AS (
    SELECT r.*, l.version, l.last_at
    FROM runs AS r
    JOIN latest AS l USING (connection, session_id)
    WHERE l.agent IS NOT DISTINCT FROM $agent AND (l.last_at, r.number) <= (
        SELECT (u.last_at, n.number) FROM runs AS n JOIN latest AS u USING (connection, session_id) WHERE n.number = $number
    )
    ORDER BY l.last_at DESC, r.number DESC
    LIMIT $limit
)
SELECT
    w.number, printf('run_%03d', w.number) AS run_id, w.last_at AS ended_at, d.readiness_level, d.trust_score, d.primary_failure_type
FROM wanted AS w
JOIN log.diagnoses AS d ON d.connection = w.connection AND d.session_id = w.session_id AND (d.revision, d._offset) = w.version
ORDER BY w.last_at DESC, w.number DESC
