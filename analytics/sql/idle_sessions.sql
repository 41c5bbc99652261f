-- purpose: sessions that have something to close and of which nothing was heard for longer than the session gap
-- grain: one row a session and topic
-- parameters: $as_of, $gap_seconds
WITH heard AS (
    SELECT connection, session_id, project, agent, occurred_at, _topic, _offset FROM log.exchanges
    UNION ALL
    SELECT connection, session_id, project, agent, occurred_at, _topic, _offset FROM log.agent_events
), per_topic AS (
    SELECT
        connection, session_id, _topic, max(_offset) AS last_offset, max(occurred_at) AS last_at,
        arg_max(project, _offset) AS project, arg_max(agent, _offset) AS agent
    FROM heard
    GROUP BY ALL
), closed AS (
    SELECT connection, session_id, _topic, max(_offset) AS closed_offset FROM log.session_closings GROUP BY ALL
), per_session AS (
    SELECT *, max(last_at) OVER (PARTITION BY connection, session_id) AS session_last_at FROM per_topic
)
SELECT s.connection, s.session_id, s._topic AS topic, s.project, s.agent, s.session_last_at AS last_at
FROM per_session AS s
LEFT JOIN closed AS c USING (connection, session_id, _topic)
WHERE (c.closed_offset IS NULL OR c.closed_offset < s.last_offset)
    AND s.session_last_at < $as_of::TIMESTAMP - to_seconds($gap_seconds)
ORDER BY last_at, s.connection, s.session_id, topic
