-- purpose: the exchanges that were due to be judged, and those of them without a score, by day, of projects in which some have one
--     and some have none
-- grain: one row per project and UTC day with exchanges that were due
-- parameters: $projects (list), $since (inclusive) and $until (exclusive) in event time
SELECT
    project, day::DATE AS day, sum(exchanges)::BIGINT AS due,
    coalesce(sum(exchanges) FILTER (disposition = 'unscored'), 0)::BIGINT AS unscored
FROM log.score_days(NULL, $since::TIMESTAMP, $until::TIMESTAMP)
WHERE list_contains($projects::VARCHAR[], project) AND disposition IN ('scored', 'unscored')
GROUP BY project, day
QUALIFY sum(unscored) OVER (PARTITION BY project) BETWEEN 1 AND sum(due) OVER (PARTITION BY project) - 1
ORDER BY project, day
