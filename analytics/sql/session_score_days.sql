-- purpose: a score of the sessions judged without a written case per day
-- grain: one row per project and UTC day on which judged sessions ended. mean: weighted by 1 / sampling probability, 0 to 10;
--     half: half the width of its 95% confidence interval (Student's t), NULL for fewer than two sessions
-- parameters: $project (NULL: all), $series (overall or a dimension), $as_of (exclusive end), $days (number of UTC days; the
--     last may be incomplete)
WITH series_values AS (
    SELECT project, ended_at::DATE AS day, weight, scores[$series] AS score, simulated
    FROM log.session_judgements()
    WHERE ($project IS NULL OR project = $project) AND ended_at >= log.first_day_of($as_of::TIMESTAMP, $days)
        AND ended_at < $as_of::TIMESTAMP
), measured AS (
    SELECT
        project, day, count(*) AS sessions, sum(weight * score) / sum(weight) AS mean, stddev_pop(score) AS deviation,
        sum(weight) ** 2 / sum(weight ** 2) AS effective_count, bool_or(simulated) AS simulated
    FROM series_values
    WHERE score IS NOT NULL
    GROUP BY project, day
)
SELECT
    project, day, sessions, mean,
    CASE WHEN effective_count >= 2 THEN log.t_quantile(effective_count - 1) * deviation / sqrt(effective_count - 1) END AS half,
    simulated
FROM measured
ORDER BY project, day
