-- purpose: the last five exchanges of each session, where a session's wrap-up is to be found
-- grain: one row a session: its texts, oldest first
-- parameters: $project (NULL for all), $limit (sessions, newest first)
WITH newest AS (
    SELECT
        arg_max(project, _offset) AS project, connection, session_id, count(*) AS exchange_count, max(occurred_at) AS last_at,
        max(_offset, 5) AS offsets
    FROM log.exchanges
    WHERE $project IS NULL OR project = $project
    GROUP BY ALL
    ORDER BY last_at DESC, connection, session_id
    LIMIT $limit
), wanted AS (
    SELECT * EXCLUDE (offsets), unnest(offsets) AS _offset
    FROM newest
)
SELECT
    w.project, w.connection, w.session_id, w.exchange_count, w.last_at,
    list(e.user_message || chr(10) || e.agent_response ORDER BY _offset) AS texts
FROM wanted AS w
JOIN log.exchanges AS e USING (connection, session_id, _offset)
GROUP BY ALL
ORDER BY w.last_at DESC, w.connection, w.session_id
