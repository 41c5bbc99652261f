-- purpose: the traces with spans between two positions of a partition, with what shows whether each trace is complete
-- grain: one row per connection and trace
-- parameters: $partition, $start (inclusive) and $end (exclusive) positions
SELECT
    connection,
    trace_id,
    any_value(project ORDER BY span_id) AS project,
    count(*) AS spans,
    bool_or(parent_span_id IS NULL) AS has_root,
    max(ingested_at) AS last_at,
    min(_offset) AS first_offset
FROM log.spans
WHERE _partition = $partition AND _offset >= $start AND _offset < $end
GROUP BY connection, trace_id
ORDER BY connection, trace_id
