-- purpose: the events of some sessions, in the order in which they were folded, as far as an evaluation reads them: in the middle of a session that is very large, payloads are left out, and then events
-- grain: one row an event; payload is NULL where it is left out
-- parameters: $sessions (list of {connection, session_id}), $bytes (of the payloads) and $rows that are read of a session, half of them at either end
WITH wanted AS (
    SELECT unnest($sessions::STRUCT(connection VARCHAR, session_id VARCHAR)[], recursive := true)
), sized AS (
    SELECT
        _partition, _offset, strlen(payload) AS size,
        row_number() OVER ordered AS place, count(*) OVER (PARTITION BY connection, session_id) AS places,
        sum(size) OVER ordered AS read, sum(size) OVER (PARTITION BY connection, session_id) AS total
    FROM log.agent_events
    SEMI JOIN wanted USING (connection, session_id)
    WINDOW ordered AS (PARTITION BY connection, session_id ORDER BY _partition, _offset ROWS UNBOUNDED PRECEDING)
), kept AS (
    SELECT _partition, _offset, total <= $bytes OR 2 * read <= $bytes OR 2 * (total - read + size) <= $bytes AS whole
    FROM sized
    WHERE 2 * place <= $rows OR 2 * (places - place) < $rows
)
SELECT
    e.connection, e.session_id, e.event_id, e.event, e.tool, e.status, e.tokens,
    CASE WHEN k.whole THEN e.payload END AS payload
FROM log.agent_events AS e
JOIN kept AS k USING (_partition, _offset)
SEMI JOIN wanted USING (connection, session_id)
ORDER BY e.connection, e.session_id, e._partition, e._offset
