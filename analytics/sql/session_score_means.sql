-- purpose: the scores of the sessions judged without a written case in a period, by the end of the session
-- grain: one row per project and score (overall first, then the dimensions), of the yardstick of the newest session. mean:
--     weighted by 1 / sampling probability, 0 to 10; half: half the width of its 95% confidence interval (Student's t with
--     the effective sample size), NULL for fewer than two sessions
-- parameters: $project (NULL: all), $from (inclusive) and $to (exclusive) of the end of the session (NULL: unbounded)
WITH judged AS (
    SELECT project, session_id, ended_at, weight, scores, judge_model, simulated
    FROM log.session_judgements()
    WHERE ($project IS NULL OR project = $project) AND ($from IS NULL OR ended_at >= $from::TIMESTAMP)
        AND ($to IS NULL OR ended_at < $to::TIMESTAMP)
    QUALIFY yardstick = arg_max(yardstick, (ended_at, session_id, yardstick)) OVER (PARTITION BY project)
), series_values AS (
    SELECT project, weight, judge_model, simulated, unnest(map_entries(scores)) AS entry FROM judged
), measured AS (
    SELECT
        project, entry.key AS score, count(*) AS sessions, sum(weight * entry.value) / sum(weight) AS mean,
        stddev_pop(entry.value) AS deviation, sum(weight) ** 2 / sum(weight ** 2) AS effective_count, any_value(judge_model) AS judge_model,
        count(*) FILTER (simulated) AS simulated
    FROM series_values
    WHERE entry.value IS NOT NULL
    GROUP BY project, entry.key
)
SELECT
    project, score, sessions, mean,
    CASE WHEN effective_count >= 2 THEN log.t_quantile(effective_count - 1) * deviation / sqrt(effective_count - 1) END AS half,
    judge_model, simulated
FROM measured
ORDER BY project, list_position(['overall', 'task', 'process', 'autonomy', 'closeness', 'efficiency', 'spark'], score)
