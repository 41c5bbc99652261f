-- purpose: the last time that each of some evaluations was asked for
-- grain: one row per evaluation that was ever asked for; position is that of the request in its topic, carried the judgements that it brought along, is_set_aside whether it became a dead letter, made the newest attempt with a result, finished or failed (-1: none)
-- parameters: $evaluations (list of ids)
WITH wanted AS (
    SELECT unnest($evaluations::VARCHAR[]) AS evaluation_id
), asked AS (
    SELECT *
    FROM log.evaluation_requests
    SEMI JOIN wanted USING (evaluation_id)
    QUALIFY row_number() OVER (PARTITION BY evaluation_id ORDER BY attempt DESC, _offset DESC) = 1
), made AS (
    SELECT evaluation_id, max(revision) AS made
    FROM log.evaluations
    SEMI JOIN wanted USING (evaluation_id)
    GROUP BY evaluation_id
), letters AS (
    SELECT DISTINCT position AS _offset, partition
    FROM log.dead_letters
    WHERE stage IN ('evaluation', 'decoding') AND source = 'evaluation-requests'
)
SELECT
    a.evaluation_id, a.attempt, a._offset AS position, a.earlier_judgements AS carried,
    coalesce(m.made, -1) AS made,
    EXISTS (
        SELECT 1 FROM letters AS l WHERE l._offset = a._offset AND coalesce(l.partition, a._partition) = a._partition
    ) AS is_set_aside
FROM asked AS a
LEFT JOIN made AS m USING (evaluation_id)
ORDER BY a.evaluation_id
