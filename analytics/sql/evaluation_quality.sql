-- purpose: the quality of runs on each case over time, by the end of the run: mean score with its 95% confidence
--     interval (Student's t)
-- grain: one row per project, case, yardstick and period with evaluated runs. A run counts once, by its newest
--     evaluation; whole sessions, which have no case, do not count. low, high: NULL for fewer than two scores
-- parameters: $project, $case (NULL: all), $unit (day, week or month; NULL: week), $from (inclusive) and $to
--     (exclusive) of the end of the run (NULL: unbounded)
WITH counted AS (
    SELECT
        project, case_id, yardstick, date_trunc(coalesce($unit, 'week'), coalesce(run_at, evaluated_at))::DATE AS period,
        judge_run_id, judge_model, evaluated_at, final_score, simulated
    FROM log.current_evaluations($project)
    WHERE sampling_probability IS NULL AND ($case IS NULL OR case_id = $case)
        AND ($from IS NULL OR coalesce(run_at, evaluated_at) >= $from::TIMESTAMP)
        AND ($to IS NULL OR coalesce(run_at, evaluated_at) < $to::TIMESTAMP)
), measured AS (
    SELECT
        project, case_id, yardstick, period, arg_max(judge_run_id, evaluated_at) AS judge_run_id, any_value(judge_model) AS judge_model,
        count(*) AS evaluations, count(*) - count(final_score) AS failed, avg(final_score ORDER BY final_score) AS mean,
        log.t_quantile(count(final_score) - 1) * stddev_samp(final_score ORDER BY final_score) / sqrt(count(final_score)) AS half,
        bool_or(simulated) AS simulated
    FROM counted
    GROUP BY project, case_id, yardstick, period
)
SELECT
    project, case_id, period, evaluations, failed, mean,
    CASE WHEN half IS NOT NULL THEN greatest(0, mean - half) END AS low, CASE WHEN half IS NOT NULL THEN least(10, mean + half) END AS high,
    judge_run_id, judge_model, yardstick, simulated
FROM measured
ORDER BY project, case_id, yardstick, period
