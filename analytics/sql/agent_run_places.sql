-- purpose: the newest runs of an agent that have runtime events, so that their events can be read again
-- grain: one row per run, oldest first
-- parameters: $project, $agent (NULL: runs without an agent), $since (inclusive, by the end of the run), $limit (the
--     newest runs)
WITH runs AS (
    SELECT
        connection, session_id, arg_max(agent, (revision, _offset)) AS agent,
        arg_max(coalesce(ended_at, closed_at), (revision, _offset)) AS last_at
    FROM log.diagnoses
    WHERE project = $project AND event_count > 0
    GROUP BY connection, session_id
), newest AS (
    SELECT n.number, e.connection, e.session_id, e.last_at
    FROM runs AS e
    JOIN log.run_numbers AS n USING (connection, session_id)
    WHERE e.agent IS NOT DISTINCT FROM $agent AND e.last_at >= $since
    ORDER BY e.last_at DESC, n.number DESC
    LIMIT $limit
)
SELECT number, connection, session_id, last_at FROM newest ORDER BY last_at, number
