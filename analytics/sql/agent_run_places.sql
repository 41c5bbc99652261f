-- purpose: the newest runs of an agent, or of all agents, that have runtime events, so that their events can be read again
-- grain: one row per run, oldest first
-- parameters: $project, $agent (NULL: runs without an agent), $every_agent (true: of all agents), $since (inclusive, by the end of the run), $limit (the
--     newest runs)
WITH runs AS (
    SELECT
        connection, session_id, arg_max(agent, (revision, _offset)) AS agent,
        arg_max(coalesce(ended_at, closed_at), (revision, _offset)) AS last_at
    FROM log.diagnoses
    WHERE project = $project AND event_count > 0
    GROUP BY connection, session_id
), newest AS (
    SELECT n.number, e.connection, e.session_id, e.agent, e.last_at
    FROM runs AS e
    JOIN log.run_numbers AS n USING (connection, session_id)
    WHERE ($every_agent OR e.agent IS NOT DISTINCT FROM $agent) AND e.last_at >= $since
    ORDER BY e.last_at DESC, n.number DESC
    LIMIT $limit
)
SELECT number, connection, session_id, agent, last_at FROM newest ORDER BY last_at, number
