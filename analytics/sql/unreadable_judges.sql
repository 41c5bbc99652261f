-- purpose: judge models whose latest answers are unreadable. They are called rarely, and their judging waits
-- grain: one row per requested model: the number of unreadable answers since its last readable one, and the newest
--     error
-- parameters: $project (NULL: all), $least (minimum number of unreadable answers in a row), $from (inclusive, by the
--     time of the newest)
WITH readable AS (
    SELECT requested_model, max(judged_at) AS readable_at
    FROM judgements
    WHERE outcome = 'answered' AND ($project IS NULL OR project = $project)
    GROUP BY ALL
)
SELECT
    j.requested_model AS model, count(*) AS questions, min(j.judged_at) AS since, max(j.judged_at) AS last_at,
    arg_max(j.error, (j.judged_at, j.judgement_id)) AS error
FROM judgements AS j
LEFT JOIN readable AS r USING (requested_model)
WHERE (j.outcome IN ('invalid', 'partial') OR starts_with(j.error, 'unreadable answer')) AND ($project IS NULL OR j.project = $project)
    AND (r.readable_at IS NULL OR j.judged_at > r.readable_at)
GROUP BY ALL
HAVING count(*) >= $least AND max(j.judged_at) >= $from::TIMESTAMP
ORDER BY model
