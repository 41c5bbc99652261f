-- purpose: all spans of the given traces
-- grain: one row per span, with the columns of its record
-- parameters: $connections, $trace_ids (parallel lists), $least (the smallest offset of their spans)
WITH requested AS (
    SELECT unnest($connections::varchar []) AS connection, unnest($trace_ids::varchar []) AS trace_id
)

SELECT s.* EXCLUDE (_topic, _partition, _offset)
FROM log.spans AS s
SEMI JOIN requested ON s.connection = requested.connection AND s.trace_id = requested.trace_id
WHERE s._offset >= $least
ORDER BY s.connection, s.trace_id, s.started_at, s.span_id
