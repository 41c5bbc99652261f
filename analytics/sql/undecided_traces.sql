-- purpose: traces with spans that no assembly covers, to migrate a database from before trace states existed
-- grain: one row per connection and trace
-- parameters: none
WITH decided AS (
    SELECT
        connection,
        trace_id,
        max(spans) AS spans
    FROM log.trace_assemblies
    GROUP BY connection, trace_id
)

SELECT
    s.connection,
    s.trace_id,
    any_value(s.project ORDER BY s.span_id) AS project,
    count(*) AS spans,
    bool_or(s.parent_span_id IS NULL) AS has_root,
    max(s.ingested_at) AS last_at,
    min(s._offset) AS first_offset
FROM log.spans AS s
LEFT JOIN decided AS d ON s.connection = d.connection AND s.trace_id = d.trace_id
GROUP BY s.connection, s.trace_id
HAVING count(*) > coalesce(any_value(d.spans), 0)
ORDER BY s.connection, s.trace_id
