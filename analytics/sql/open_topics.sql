-- purpose: where a session has records, to close it there
-- grain: one row a session and topic; closed_at is when it counts as closed, always later than its last closing
-- parameters: $session, $connection (NULL for any), $as_of
WITH heard AS (
    SELECT connection, session_id, project, agent, occurred_at, _topic, _offset FROM log.exchanges
    UNION ALL
    SELECT connection, session_id, project, agent, occurred_at, _topic, _offset FROM log.agent_events
), closings AS (
    SELECT connection, session_id, max(closed_at) AS last_closed_at FROM log.session_closings GROUP BY ALL
)
SELECT
    connection, session_id, _topic AS topic, arg_max(project, _offset) AS project, arg_max(agent, _offset) AS agent,
    max(occurred_at) AS last_at,
    greatest($as_of::TIMESTAMP, any_value(last_closed_at) + INTERVAL 1 MICROSECOND) AS closed_at
FROM heard
LEFT JOIN closings USING (connection, session_id)
WHERE session_id = $session AND ($connection IS NULL OR connection = $connection)
GROUP BY connection, session_id, _topic
ORDER BY connection, topic
