-- purpose: traces of which spans have come since the last look, with what tells whether they are complete
-- grain: one row per connection and trace
-- parameters: $partitions and $starts (the position from which on each partition of the topic is new), $least (the smallest of them, or 0 where a partition has not been met)
WITH starts AS (
    SELECT unnest($partitions::integer []) AS part, unnest($starts::bigint []) AS start
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
LEFT JOIN starts ON s._partition = starts.part
WHERE s._offset >= $least AND s._offset >= coalesce(starts.start, 0)
GROUP BY s.connection, s.trace_id
ORDER BY s.connection, s.trace_id
