-- purpose: the last time that each of some evaluations was asked for
-- grain: one row an evaluation that was ever asked for; position is that of the request in its topic, carried the judgements that it brought along
-- parameters: $evaluations (list of ids)
WITH wanted AS (
    SELECT unnest($evaluations::VARCHAR[]) AS evaluation_id
)
SELECT evaluation_id, max(attempt) AS attempt, arg_max(_offset, attempt) AS position, arg_max(earlier_judgements, attempt) AS carried
FROM log.evaluation_requests
SEMI JOIN wanted USING (evaluation_id)
GROUP BY evaluation_id
ORDER BY evaluation_id
