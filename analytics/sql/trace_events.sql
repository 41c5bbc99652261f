-- purpose: the events that earlier revisions of some traces made, with their payloads
-- grain: one row per event, in the order in which they were told
-- parameters: $connections, $trace_ids (the traces that are asked for, each with its connection)
WITH asked AS (
    SELECT unnest($connections::varchar []) AS connection, unnest($trace_ids::varchar []) AS trace_id
)

SELECT
    e.connection,
    asked.trace_id,
    e.event_id,
    e.payload
FROM log.agent_events AS e
INNER JOIN asked ON e.connection = asked.connection AND split_part(e.event_id, ':', 1) = asked.trace_id
WHERE e.source = 'otlp'
ORDER BY e.connection, asked.trace_id, e._partition, e._offset
