-- purpose: the exchanges of some sessions, in the order of their event time, as far as an evaluation reads them: in the middle of a session that is very large, texts are left out, and then exchanges
-- grain: one row per exchange, with the columns of its record, but for thinking and the raw message, which nobody reads here
-- parameters: $sessions (list of {connection, session_id}), $bytes (of the texts) and $rows that are read of a session, half of them at either end
WITH wanted AS (
    SELECT unnest($sessions::STRUCT(connection VARCHAR, session_id VARCHAR)[], recursive := true)
), exchanges AS (
    SELECT
        * EXCLUDE (_topic, user_message, agent_response, agent_thinking, raw_user_message),
        strlen(user_message) + strlen(agent_response) AS size, length(user_message) AS asked, length(agent_response) AS answered
    FROM log.current_exchanges
    SEMI JOIN wanted USING (connection, session_id)
), sized AS (
    SELECT
        *, row_number() OVER ordered AS place, count(*) OVER (PARTITION BY connection, session_id) AS places,
        sum(size) OVER ordered AS read, sum(size) OVER (PARTITION BY connection, session_id) AS total
    FROM exchanges
    WINDOW ordered AS (PARTITION BY connection, session_id ORDER BY occurred_at, _partition, _offset ROWS UNBOUNDED PRECEDING)
), kept AS (
    SELECT *, total <= $bytes OR 2 * read <= $bytes OR 2 * (total - read + size) <= $bytes AS whole
    FROM sized
    WHERE 2 * place <= $rows OR 2 * (places - place) < $rows
), texts AS (
    -- Carry only these texts: otherwise up to half a gigabyte of them would be sorted in memory.
    SELECT _partition, _offset, user_message, agent_response
    FROM log.exchanges
    SEMI JOIN (SELECT _partition, _offset FROM kept WHERE whole) USING (_partition, _offset)
)
SELECT
    k.* EXCLUDE (_partition, _offset, size, asked, answered, place, places, read, total, whole),
    coalesce(t.user_message, printf('(%d characters left out)', k.asked)) AS user_message,
    coalesce(t.agent_response, printf('(%d characters left out)', k.answered)) AS agent_response,
    NULL::VARCHAR AS agent_thinking, NULL::VARCHAR AS raw_user_message
FROM kept AS k
LEFT JOIN texts AS t USING (_partition, _offset)
ORDER BY k.connection, k.session_id, k.occurred_at, k._partition, k._offset
