-- purpose: the exchanges of the given sessions by event time, within the limits of an evaluation. The middle of a
--     very large session loses first its texts, then its exchanges
-- grain: one row per exchange, with the columns of its record; thinking and the raw message are always NULL
-- parameters: $sessions (list of {connection, session_id}), $bytes (of texts) and $rows (exchanges) to keep per
--     session, half at either end
WITH requested AS (
    SELECT unnest($sessions::STRUCT(connection VARCHAR, session_id VARCHAR)[], recursive := true)
), exchanges AS (
    SELECT
        * EXCLUDE (_topic, user_message, agent_response, agent_thinking, raw_user_message),
        strlen(user_message) + strlen(agent_response) AS size, length(user_message) AS message_length,
        length(agent_response) AS response_length
    FROM log.current_exchanges
    SEMI JOIN requested USING (connection, session_id)
), sized AS (
    SELECT
        *, row_number() OVER ordered AS row_index, count(*) OVER (PARTITION BY connection, session_id) AS row_count,
        sum(size) OVER ordered AS bytes_so_far, sum(size) OVER (PARTITION BY connection, session_id) AS total
    FROM exchanges
    WINDOW ordered AS (PARTITION BY connection, session_id ORDER BY occurred_at, _partition, _offset ROWS UNBOUNDED PRECEDING)
), kept AS (
    SELECT *, total <= $bytes OR 2 * bytes_so_far <= $bytes OR 2 * (total - bytes_so_far + size) <= $bytes AS is_whole
    FROM sized
    WHERE 2 * row_index <= $rows OR 2 * (row_count - row_index) < $rows
), texts AS (
    -- Join texts last: sorting rows with texts would need up to half a gigabyte of memory.
    SELECT _partition, _offset, user_message, agent_response
    FROM log.exchanges
    SEMI JOIN (SELECT _partition, _offset FROM kept WHERE is_whole) USING (_partition, _offset)
)
SELECT
    k.* EXCLUDE (_partition, _offset, size, message_length, response_length, row_index, row_count, bytes_so_far, total, is_whole),
    coalesce(t.user_message, printf('(%d characters left out)', k.message_length)) AS user_message,
    coalesce(t.agent_response, printf('(%d characters left out)', k.response_length)) AS agent_response,
    NULL::VARCHAR AS agent_thinking, NULL::VARCHAR AS raw_user_message
FROM kept AS k
LEFT JOIN texts AS t USING (_partition, _offset)
ORDER BY k.connection, k.session_id, k.occurred_at, k._partition, k._offset
