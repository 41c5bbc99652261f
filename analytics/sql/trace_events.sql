-- purpose: the events that earlier revisions of the given traces produced, with their payloads
-- grain: one row per event, in the order in which they were produced
-- parameters: $connections, $trace_ids (parallel lists)
WITH requested AS (
    SELECT unnest($connections::varchar []) AS connection, unnest($trace_ids::varchar []) AS trace_id
)

SELECT
    e.connection,
    requested.trace_id,
    e.event_id,
    e.payload
FROM log.agent_events AS e
INNER JOIN requested ON e.connection = requested.connection AND split_part(e.event_id, ':', 1) = requested.trace_id
WHERE e.source = 'otlp'
ORDER BY e.connection, requested.trace_id, e._partition, e._offset
