-- purpose: all judgements of the given exchanges, in the order in which they were recorded
-- grain: one row per judgement, with the columns of its record
-- parameters: $subjects (list of {connection, subject_id})
WITH requested AS (
    SELECT unnest($subjects::STRUCT(connection VARCHAR, subject_id VARCHAR)[], recursive := true)
)
SELECT j.* EXCLUDE (_topic, _partition, _offset)
FROM log.judgements AS j
SEMI JOIN requested USING (connection, subject_id)
ORDER BY connection, subject_id, _partition, _offset
