-- purpose: models whose last answers cannot be read, so that they are asked seldom and what is to be judged waits
-- grain: one row per model that was asked, with the questions that ended so since it last gave an answer that can be read, and the error of the newest
-- parameters: $project (NULL for all), $least (questions in a row), $from (inclusive) of the time of the newest
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
WHERE (j.outcome = 'invalid' OR starts_with(j.error, 'unreadable answer')) AND ($project IS NULL OR j.project = $project)
    AND (r.readable_at IS NULL OR j.judged_at > r.readable_at)
GROUP BY ALL
HAVING count(*) >= $least AND max(j.judged_at) >= $from::TIMESTAMP
ORDER BY model
