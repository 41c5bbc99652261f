-- purpose: the latest request of each of the given evaluations
-- grain: one row per evaluation that was ever requested. position: offset of the request in its topic; carried:
--     earlier judgements sent with the request; is_set_aside: whether it became a dead letter; made: newest attempt
--     with a result, finished or failed (-1: none)
-- parameters: $evaluations (list of ids)
WITH requested AS (
    SELECT unnest($evaluations::VARCHAR[]) AS evaluation_id
), latest_requests AS (
    SELECT *
    FROM log.evaluation_requests
    SEMI JOIN requested USING (evaluation_id)
    QUALIFY row_number() OVER (PARTITION BY evaluation_id ORDER BY attempt DESC, _offset DESC) = 1
), results AS (
    SELECT evaluation_id, max(revision) AS made
    FROM log.evaluations
    SEMI JOIN requested USING (evaluation_id)
    GROUP BY evaluation_id
), set_aside_requests AS (
    SELECT DISTINCT position AS _offset, partition
    FROM log.dead_letters
    WHERE stage IN ('evaluation', 'decoding') AND source = 'evaluation-requests'
)
SELECT
    a.evaluation_id, a.attempt, a._offset AS position, a.earlier_judgements AS carried,
    coalesce(m.made, -1) AS made,
    EXISTS (
        SELECT 1 FROM set_aside_requests AS l WHERE l._offset = a._offset AND coalesce(l.partition, a._partition) = a._partition
    ) AS is_set_aside
FROM latest_requests AS a
LEFT JOIN results AS m USING (evaluation_id)
ORDER BY a.evaluation_id
