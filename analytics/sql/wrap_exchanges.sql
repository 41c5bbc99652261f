-- purpose: the last five exchanges of each session, where a session's wrap-up is to be found
-- grain: one row a session: its texts, oldest first
-- parameters: $project (NULL for all), $limit (sessions, newest first); $after_at, $after_id: last_at, and connection/session_id, of the row after which to go on (NULL: from the newest)
WITH heard AS (
    SELECT
        arg_max(project, _offset) AS project, connection, session_id, count(*) AS exchange_count, max(occurred_at) AS last_at,
        max(_offset, 5) AS offsets
    FROM log.exchanges
    WHERE $project IS NULL OR project = $project
    GROUP BY connection, session_id
), newest AS (
    SELECT *
    FROM heard
    WHERE $after_at IS NULL OR last_at < $after_at::TIMESTAMP
        OR (last_at = $after_at::TIMESTAMP AND connection || '/' || session_id > $after_id)
    ORDER BY last_at DESC, connection || '/' || session_id
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
ORDER BY w.last_at DESC, any_value(w.connection || '/' || w.session_id)
