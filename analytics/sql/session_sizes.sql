-- purpose: the size of each of the given sessions, to decide how many to read at once
-- grain: one row per session with records. *_bytes: size of the texts and payloads
-- parameters: $sessions (list of {connection, session_id})
WITH requested AS (
    SELECT unnest($sessions::STRUCT(connection VARCHAR, session_id VARCHAR)[], recursive := true)
), parts AS (
    SELECT connection, session_id, 1 AS exchanges, strlen(user_message) + strlen(agent_response) AS exchange_bytes, 0 AS events,
        0 AS event_bytes
    FROM log.current_exchanges
    SEMI JOIN requested USING (connection, session_id)
    UNION ALL
    SELECT connection, session_id, 0 AS exchanges, 0 AS exchange_bytes, 1 AS events, strlen(payload) AS event_bytes
    FROM log.agent_events
    SEMI JOIN requested USING (connection, session_id)
)
SELECT
    connection, session_id, sum(exchanges)::BIGINT AS exchanges, sum(exchange_bytes)::BIGINT AS exchange_bytes,
    sum(events)::BIGINT AS events, sum(event_bytes)::BIGINT AS event_bytes
FROM parts
GROUP BY connection, session_id
ORDER BY connection, session_id
