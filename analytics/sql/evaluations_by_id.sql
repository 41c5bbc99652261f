-- purpose: the current records of the given evaluations
-- grain: one row per evaluation found, with the columns of its record
-- parameters: $evaluations (list of ids)
WITH requested AS (
    SELECT unnest($evaluations::VARCHAR[]) AS evaluation_id
)
SELECT e.* EXCLUDE (_topic, _partition, _offset)
FROM log.evaluations AS e
SEMI JOIN requested USING (evaluation_id)
QUALIFY row_number() OVER (PARTITION BY evaluation_id ORDER BY status = 'completed' DESC, revision DESC, _offset DESC) = 1
ORDER BY evaluation_id
