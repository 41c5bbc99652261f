-- purpose: the exchanges of a project that were due to be judged and have no score, by day
-- grain: one row per UTC day with exchanges that were due
-- parameters: $project, $since (inclusive) and $until (exclusive) in event time
SELECT
    day::DATE AS day, sum(exchanges)::BIGINT AS due,
    coalesce(sum(exchanges) FILTER (disposition = 'unscored'), 0)::BIGINT AS unscored
FROM log.score_days($project, $since::TIMESTAMP, $until::TIMESTAMP)
WHERE disposition IN ('scored', 'unscored')
GROUP BY day
ORDER BY day
