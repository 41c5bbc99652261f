-- purpose: where the newest runs of an agent with runtime events are, for looking at their events again
-- grain: one row per run of the agent, the newest last
-- parameters: $project, $agent (NULL: runs without one), $since (runs that ended from then on), $limit (the newest so many)
WITH ended AS (
    SELECT
        connection, session_id, arg_max(agent, (revision, _offset)) AS agent,
        arg_max(coalesce(ended_at, closed_at), (revision, _offset)) AS last_at
    FROM log.diagnoses
    WHERE project = $project AND event_count > 0
    GROUP BY connection, session_id
), newest AS (
    SELECT n.number, e.connection, e.session_id, e.last_at
    FROM ended AS e
    JOIN log.run_numbers AS n USING (connection, session_id)
    WHERE e.agent IS NOT DISTINCT FROM $agent AND e.last_at >= $since
    ORDER BY e.last_at DESC, n.number DESC
    LIMIT $limit
)
SELECT number, connection, session_id, last_at FROM newest ORDER BY last_at, number
