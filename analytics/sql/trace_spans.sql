-- purpose: all spans of some traces
-- grain: one row per span
-- parameters: $connections, $trace_ids (the traces that are asked for, each with its connection), $least (no span of them stands before this position)
WITH asked AS (
    SELECT unnest($connections::varchar []) AS connection, unnest($trace_ids::varchar []) AS trace_id
)

SELECT s.* EXCLUDE (_topic, _partition, _offset)
FROM log.spans AS s
SEMI JOIN asked ON s.connection = asked.connection AND s.trace_id = asked.trace_id
WHERE s._offset >= $least
ORDER BY s.connection, s.trace_id, s.started_at, s.span_id
