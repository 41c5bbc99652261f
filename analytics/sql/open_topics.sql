-- purpose: the topics in which to close the given sessions: every topic with their records. A session without events
--     is also closed in the topic of events, where it becomes a run
-- grain: one row per session and topic. A session without events appears under events if it has exchanges after its
--     last end, or was never diagnosed. closed_at: the time of closing, always later than the last closing
-- parameters: $sessions, $connection (NULL: any), $as_of
WITH requested AS (
    SELECT unnest($sessions::varchar []) AS session_id
), records AS (
    SELECT connection, session_id, project, agent, occurred_at, _topic AS topic, _offset FROM log.exchanges
    WHERE session_id IN (SELECT requested.session_id FROM requested) AND ($connection IS NULL OR connection = $connection)
    UNION ALL
    SELECT connection, session_id, project, agent, occurred_at, _topic AS topic, _offset FROM log.agent_events
    WHERE session_id IN (SELECT requested.session_id FROM requested) AND ($connection IS NULL OR connection = $connection)
), closings AS (
    SELECT
        connection, session_id, max(closed_at) AS last_closed_at, max(_offset) FILTER (WHERE _topic = 'exchanges') AS last_exchange,
        bool_or(_topic = 'agent-events') AS is_diagnosed
    FROM log.session_closings
    WHERE session_id IN (SELECT requested.session_id FROM requested)
    GROUP BY ALL
), exchanges_only AS (
    SELECT connection, session_id
    FROM records
    LEFT JOIN closings USING (connection, session_id)
    WHERE connection <> 'anchors'
    GROUP BY connection, session_id
    HAVING bool_and(topic = 'exchanges')
        AND (max(_offset) > coalesce(any_value(last_exchange), -1) OR NOT coalesce(any_value(is_diagnosed), false))
), session_topics AS (
    FROM records
    UNION ALL
    SELECT h.* REPLACE ('agent-events' AS topic) FROM records AS h SEMI JOIN exchanges_only USING (connection, session_id)
)
SELECT
    connection, session_id, topic, arg_max(project, _offset) AS project, arg_max(agent, _offset) AS agent, max(occurred_at) AS last_at,
    greatest($as_of::TIMESTAMP, any_value(last_closed_at) + INTERVAL 1 MICROSECOND) AS closed_at
FROM session_topics
LEFT JOIN closings USING (connection, session_id)
GROUP BY connection, session_id, topic
ORDER BY connection, session_id, topic
