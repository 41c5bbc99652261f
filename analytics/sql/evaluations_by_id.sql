-- purpose: the current evaluations of some ids, whole
-- grain: one row per evaluation that is there, with the columns of its record
-- parameters: $evaluations (list of ids)
WITH wanted AS (
    SELECT unnest($evaluations::VARCHAR[]) AS evaluation_id
)
SELECT e.* EXCLUDE (_topic, _partition, _offset)
FROM log.evaluations AS e
SEMI JOIN wanted USING (evaluation_id)
QUALIFY row_number() OVER (PARTITION BY evaluation_id ORDER BY status = 'completed' DESC, revision DESC, _offset DESC) = 1
ORDER BY evaluation_id
