-- purpose: the events that earlier revisions of some traces made, with what tells that a later event is the same thing
-- grain: one row per trace and event, in the order in which they were told
-- parameters: $connections, $trace_ids (the traces that are asked for, each with its connection)
WITH asked AS (
    SELECT unnest($connections::varchar []) AS connection, unnest($trace_ids::varchar []) AS trace_id
), spans AS (
    SELECT connection, trace_id, unnest([span_id, parent_span_id]) AS span_id
    FROM log.spans
    SEMI JOIN asked USING (connection, trace_id)
)

SELECT
    e.connection,
    s.trace_id,
    e.event_id,
    e.event,
    e.tool,
    json_extract_string(e.payload, '$.tool_call_id') AS tool_call_id
FROM log.agent_events AS e
INNER JOIN (SELECT DISTINCT connection, trace_id, span_id FROM spans) AS s
    ON e.connection = s.connection AND split_part(e.event_id, ':', 1) = s.span_id
WHERE e.source = 'otlp'
ORDER BY e.connection, s.trace_id, e._partition, e._offset
