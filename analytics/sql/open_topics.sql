-- purpose: where a session has records, to close it there
-- grain: one row a session and topic
-- parameters: $session, $connection (NULL for any)
WITH heard AS (
    SELECT connection, session_id, project, agent, occurred_at, _topic, _offset FROM log.exchanges
    UNION ALL
    SELECT connection, session_id, project, agent, occurred_at, _topic, _offset FROM log.agent_events
)
SELECT
    connection, session_id, _topic AS topic, arg_max(project, _offset) AS project, arg_max(agent, _offset) AS agent,
    max(occurred_at) AS last_at
FROM heard
WHERE session_id = $session AND ($connection IS NULL OR connection = $connection)
GROUP BY ALL
ORDER BY connection, topic
