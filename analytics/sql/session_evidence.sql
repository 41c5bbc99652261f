-- purpose: the events of the given sessions, in the order in which they were folded, within the limits of an
--     evaluation. The middle of a very large session loses first its payloads, then its events
-- grain: one row per event. payload: NULL if omitted
-- parameters: $sessions (list of {connection, session_id}), $bytes (of payloads) and $rows (events) to keep per
--     session, half at either end
WITH requested AS (
    SELECT unnest($sessions::STRUCT(connection VARCHAR, session_id VARCHAR)[], recursive := true)
), events AS (
    SELECT connection, session_id, event_id, event, tool, status, tokens, strlen(payload) AS size, _partition, _offset
    FROM log.agent_events
    SEMI JOIN requested USING (connection, session_id)
), sized AS (
    SELECT
        *, row_number() OVER ordered AS row_index, count(*) OVER (PARTITION BY connection, session_id) AS row_count,
        sum(size) OVER ordered AS bytes_so_far, sum(size) OVER (PARTITION BY connection, session_id) AS total
    FROM events
    WINDOW ordered AS (PARTITION BY connection, session_id ORDER BY _partition, _offset ROWS UNBOUNDED PRECEDING)
), kept AS (
    SELECT *, total <= $bytes OR 2 * bytes_so_far <= $bytes OR 2 * (total - bytes_so_far + size) <= $bytes AS is_whole
    FROM sized
    WHERE 2 * row_index <= $rows OR 2 * (row_count - row_index) < $rows
), payloads AS (
    -- Join payloads last: sorting rows with payloads would need up to half a gigabyte of memory.
    SELECT _partition, _offset, payload
    FROM log.agent_events
    SEMI JOIN (SELECT _partition, _offset FROM kept WHERE is_whole) USING (_partition, _offset)
)
SELECT k.connection, k.session_id, k.event_id, k.event, k.tool, k.status, k.tokens, w.payload
FROM kept AS k
LEFT JOIN payloads AS w USING (_partition, _offset)
ORDER BY k.connection, k.session_id, k._partition, k._offset
