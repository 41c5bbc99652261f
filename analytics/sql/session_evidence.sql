-- purpose: the events of some sessions, in the order in which they were folded, as far as an evaluation reads them: in the middle of a session that is very large, payloads are left out, and then events
-- grain: one row per event; payload is NULL where it is left out
-- parameters: $sessions (list of {connection, session_id}), $bytes (of the payloads) and $rows that are read of a session, half of them at either end
WITH wanted AS (
    SELECT unnest($sessions::STRUCT(connection VARCHAR, session_id VARCHAR)[], recursive := true)
), events AS (
    SELECT connection, session_id, event_id, event, tool, status, tokens, strlen(payload) AS size, _partition, _offset
    FROM log.agent_events
    SEMI JOIN wanted USING (connection, session_id)
), sized AS (
    SELECT
        *, row_number() OVER ordered AS place, count(*) OVER (PARTITION BY connection, session_id) AS places,
        sum(size) OVER ordered AS read, sum(size) OVER (PARTITION BY connection, session_id) AS total
    FROM events
    WINDOW ordered AS (PARTITION BY connection, session_id ORDER BY _partition, _offset ROWS UNBOUNDED PRECEDING)
), kept AS (
    SELECT *, total <= $bytes OR 2 * read <= $bytes OR 2 * (total - read + size) <= $bytes AS whole
    FROM sized
    WHERE 2 * place <= $rows OR 2 * (places - place) < $rows
), whole AS (
    -- Carry only these payloads: otherwise up to half a gigabyte of them would be sorted in memory.
    SELECT _partition, _offset, payload
    FROM log.agent_events
    SEMI JOIN (SELECT _partition, _offset FROM kept WHERE whole) USING (_partition, _offset)
)
SELECT k.connection, k.session_id, k.event_id, k.event, k.tool, k.status, k.tokens, w.payload
FROM kept AS k
LEFT JOIN whole AS w USING (_partition, _offset)
ORDER BY k.connection, k.session_id, k._partition, k._offset
