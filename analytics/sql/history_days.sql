-- purpose: the days to which an import added scores or finished runs. `streams.watch.history` checks each of them as
--     of its end. Anchor projects are excluded
-- grain: one row per project and UTC day, by project and day. is_unchecked: whether the interrupted check has not
--     covered the day's new records; checked_at: newest check of the project; known_days: days with data before
--     $until, imported or not; known_since: the first of them
-- parameters: $project (NULL: all), $until (exclusive), $scores and $runs (first offsets of the imported scores and
--     diagnoses), $begun_scores, $begun_runs and $next_day (the interrupted check has covered records before these
--     offsets on days before that day)
WITH imported AS (
    SELECT project, exchange_at::DATE AS day, _offset >= $begun_scores::BIGINT AS is_new
    FROM log.scores
    WHERE _offset >= $scores::BIGINT AND exchange_at < $until::TIMESTAMP
    UNION ALL
    SELECT project, coalesce(ended_at, closed_at)::DATE, _offset >= $begun_runs::BIGINT
    FROM log.diagnoses
    WHERE _offset >= $runs::BIGINT AND event_count > 0 AND coalesce(ended_at, closed_at) < $until::TIMESTAMP
), days AS (
    SELECT project, day, bool_or(is_new OR day >= $next_day::DATE) AS is_unchecked
    FROM imported
    WHERE ($project::VARCHAR IS NULL OR project = $project) AND NOT starts_with(project, 'anchors.')
    GROUP BY project, day
), data AS (
    SELECT project, day::DATE AS day FROM log.daily_scores WHERE day < $until::TIMESTAMP
    UNION
    SELECT project, coalesce(ended_at, closed_at)::DATE FROM log.diagnoses
    WHERE event_count > 0 AND coalesce(ended_at, closed_at) < $until::TIMESTAMP
    UNION
    SELECT project, day FROM days -- days whose scores may not be summed yet
), extent AS (
    SELECT project, count(*) AS known_days, min(day) AS known_since
    FROM data
    SEMI JOIN days USING (project)
    GROUP BY project
)
SELECT d.project, d.day, d.is_unchecked, c.checked_at, r.known_days, r.known_since
FROM days AS d
JOIN extent AS r USING (project)
LEFT JOIN log.project_checks AS c USING (project)
ORDER BY d.project, d.day
