-- purpose: the last five exchanges of each session, where a session's wrap-up is to be found
-- grain: one row a session: its texts, oldest first
-- parameters: $project (NULL for all), $limit (sessions, newest first)
WITH latest AS (
    SELECT
        project, connection, session_id, occurred_at, _offset, user_message, agent_response,
        count(*) OVER session_rows AS exchange_count, max(occurred_at) OVER session_rows AS last_at,
        row_number() OVER (session_rows ORDER BY _offset DESC) AS from_end
    FROM log.exchanges
    WHERE $project IS NULL OR project = $project
    WINDOW session_rows AS (PARTITION BY connection, session_id)
)
SELECT
    project, connection, session_id, any_value(exchange_count) AS exchange_count, any_value(last_at) AS last_at,
    list(user_message || chr(10) || agent_response ORDER BY _offset) AS texts
FROM latest
WHERE from_end <= 5
GROUP BY project, connection, session_id
ORDER BY last_at DESC, connection, session_id
LIMIT $limit
