-- purpose: the exchanges of some sessions, in the order of their event time, as far as an evaluation reads them: in the middle of a session that is very large, texts are left out, and then exchanges
-- grain: one row an exchange, with the columns of its record, but for thinking and the raw message, which nobody reads here
-- parameters: $sessions (list of {connection, session_id}), $bytes (of the texts) and $rows that are read of a session, half of them at either end
WITH wanted AS (
    SELECT unnest($sessions::STRUCT(connection VARCHAR, session_id VARCHAR)[], recursive := true)
), sized AS (
    SELECT
        _partition, _offset, strlen(user_message) + strlen(agent_response) AS size,
        row_number() OVER ordered AS place, count(*) OVER (PARTITION BY connection, session_id) AS places,
        sum(size) OVER ordered AS read, sum(size) OVER (PARTITION BY connection, session_id) AS total
    FROM log.exchanges
    SEMI JOIN wanted USING (connection, session_id)
    WINDOW ordered AS (PARTITION BY connection, session_id ORDER BY occurred_at, _partition, _offset ROWS UNBOUNDED PRECEDING)
), kept AS (
    SELECT _partition, _offset, total <= $bytes OR 2 * read <= $bytes OR 2 * (total - read + size) <= $bytes AS whole
    FROM sized
    WHERE 2 * place <= $rows OR 2 * (places - place) < $rows
)
SELECT
    e.* EXCLUDE (_topic, _partition, _offset) REPLACE (
        CASE WHEN k.whole THEN e.user_message ELSE printf('(%d characters left out)', length(e.user_message)) END AS user_message,
        CASE WHEN k.whole THEN e.agent_response ELSE printf('(%d characters left out)', length(e.agent_response)) END AS agent_response,
        NULL::VARCHAR AS agent_thinking,
        NULL::VARCHAR AS raw_user_message
    )
FROM log.exchanges AS e
JOIN kept AS k USING (_partition, _offset)
SEMI JOIN wanted USING (connection, session_id)
ORDER BY e.connection, e.session_id, e.occurred_at, e._partition, e._offset
