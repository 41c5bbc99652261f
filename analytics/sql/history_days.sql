-- purpose: which days an import brought scores or finished runs to: `streams.watch.history` checks each of them as of its end; projects that hold anchors are left out
-- grain: one row per project and UTC day, by project and day; is_unchecked: whether the check that was cut off has not looked at what came to that day; checked_at: the newest check of the project; known_days, known_since: how many days before $until have data, brought or not, and the first of them
-- parameters: $project (NULL: all), $until (exclusive), $scores and $runs: positions of scores and diagnoses from which on records were brought, $begun_scores, $begun_runs and $next_day: the check that was cut off has looked at records before these positions on days before that one
WITH brought AS (
    SELECT project, exchange_at::DATE AS day, _offset >= $begun_scores::BIGINT AS is_new
    FROM log.scores
    WHERE _offset >= $scores::BIGINT AND exchange_at < $until::TIMESTAMP
    UNION ALL
    SELECT project, coalesce(ended_at, closed_at)::DATE, _offset >= $begun_runs::BIGINT
    FROM log.diagnoses
    WHERE _offset >= $runs::BIGINT AND event_count > 0 AND coalesce(ended_at, closed_at) < $until::TIMESTAMP
), days AS (
    SELECT project, day, bool_or(is_new OR day >= $next_day::DATE) AS is_unchecked
    FROM brought
    WHERE ($project::VARCHAR IS NULL OR project = $project) AND NOT starts_with(project, 'anchors.')
    GROUP BY project, day
), data AS (
    SELECT project, day::DATE AS day FROM log.daily_scores WHERE day < $until::TIMESTAMP
    UNION
    SELECT project, coalesce(ended_at, closed_at)::DATE FROM log.diagnoses
    WHERE event_count > 0 AND coalesce(ended_at, closed_at) < $until::TIMESTAMP
    UNION
    SELECT project, day FROM days -- days whose scores may not be summed yet
), reach AS (
    SELECT project, count(*) AS known_days, min(day) AS known_since
    FROM data
    SEMI JOIN days USING (project)
    GROUP BY project
)
SELECT d.project, d.day, d.is_unchecked, c.checked_at, r.known_days, r.known_since
FROM days AS d
JOIN reach AS r USING (project)
LEFT JOIN log.project_checks AS c USING (project)
ORDER BY d.project, d.day
