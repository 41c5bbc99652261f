-- purpose: the latest assembly of each of the given traces
-- grain: one row per trace that was assembled. is_filed_by_trace: whether records were filed under the trace id
--     because no span named a session
-- parameters: $connections, $trace_ids (parallel lists)
WITH requested AS (
    SELECT unnest($connections::varchar []) AS connection, unnest($trace_ids::varchar []) AS trace_id
)

SELECT
    a.connection,
    a.trace_id,
    max(a.revision) AS revision,
    max(a.spans) AS spans,
    max(a.assembled_at) AS assembled_at,
    bool_or(a.session_id = a.trace_id AND a.exchanges + a.events > 0) AS is_filed_by_trace
FROM log.trace_assemblies AS a
SEMI JOIN requested ON a.connection = requested.connection AND a.trace_id = requested.trace_id
GROUP BY a.connection, a.trace_id
ORDER BY a.connection, a.trace_id
