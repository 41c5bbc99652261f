-- purpose: where to close some sessions: each in every topic that has records of it, and one without events among the events, too, where it becomes a run
-- grain: one row per session and topic; one without events is closed among the events once it has exchanges that no end follows; closed_at is when it counts as closed, always later than its last closing
-- parameters: $sessions, $connection (NULL for any), $as_of
WITH asked AS (
    SELECT unnest($sessions::varchar []) AS session_id
), heard AS (
    SELECT connection, session_id, project, agent, occurred_at, _topic AS topic, _offset FROM log.exchanges
    WHERE session_id IN (SELECT asked.session_id FROM asked) AND ($connection IS NULL OR connection = $connection)
    UNION ALL
    SELECT connection, session_id, project, agent, occurred_at, _topic AS topic, _offset FROM log.agent_events
    WHERE session_id IN (SELECT asked.session_id FROM asked) AND ($connection IS NULL OR connection = $connection)
), closings AS (
    SELECT
        connection, session_id, max(closed_at) AS last_closed_at, max(_offset) FILTER (WHERE _topic = 'exchanges') AS last_exchange,
        bool_or(_topic = 'agent-events') AS is_diagnosed
    FROM log.session_closings
    WHERE session_id IN (SELECT asked.session_id FROM asked)
    GROUP BY ALL
), alone AS (
    SELECT connection, session_id
    FROM heard
    LEFT JOIN closings USING (connection, session_id)
    WHERE connection <> 'anchors'
    GROUP BY connection, session_id
    HAVING bool_and(topic = 'exchanges')
        AND (max(_offset) > coalesce(any_value(last_exchange), -1) OR NOT coalesce(any_value(is_diagnosed), false))
), places AS (
    FROM heard
    UNION ALL
    SELECT h.* REPLACE ('agent-events' AS topic) FROM heard AS h SEMI JOIN alone USING (connection, session_id)
)
SELECT
    connection, session_id, topic, arg_max(project, _offset) AS project, arg_max(agent, _offset) AS agent, max(occurred_at) AS last_at,
    greatest($as_of::TIMESTAMP, any_value(last_closed_at) + INTERVAL 1 MICROSECOND) AS closed_at
FROM places
LEFT JOIN closings USING (connection, session_id)
GROUP BY connection, session_id, topic
ORDER BY connection, session_id, topic
