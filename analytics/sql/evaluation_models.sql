-- purpose: pairwise comparison of models on each case with one yardstick: means, their difference (b minus a) and its
--     95% confidence interval (Welch)
-- grain: one row per case, yardstick and pair of models, a before b. A run counts once, by its newest evaluation;
--     whole sessions, which had different tasks, do not count.
--     state: enough, rough (fewer than 5 degrees of freedom), not_enough_runs (a model has fewer than two scores) or
--     no_spread (neither model's scores vary); low, high: NULL for the last two
-- parameters: $project, $case (NULL: all), $from (inclusive) and $to (exclusive) of the end of the run (NULL:
--     unbounded)
WITH models AS (
    SELECT
        case_id, yardstick, subject_model AS model, count(final_score) AS runs, count(*) - count(final_score) AS failed,
        avg(final_score ORDER BY final_score) AS mean, var_samp(final_score ORDER BY final_score) / count(final_score) AS squared_error,
        any_value(judge_model) AS judge_model, bool_or(simulated) AS simulated
    FROM log.current_evaluations($project)
    WHERE subject_model IS NOT NULL AND sampling_probability IS NULL AND ($case IS NULL OR case_id = $case)
        AND ($from IS NULL OR coalesce(run_at, evaluated_at) >= $from::TIMESTAMP)
        AND ($to IS NULL OR coalesce(run_at, evaluated_at) < $to::TIMESTAMP)
    GROUP BY case_id, yardstick, subject_model
), pairs AS (
    SELECT
        a.case_id, a.yardstick, a.judge_model, a.model AS model_a, b.model AS model_b, a.runs AS runs_a, b.runs AS runs_b,
        a.failed AS failed_a, b.failed AS failed_b, a.mean AS mean_a, b.mean AS mean_b, b.mean - a.mean AS difference,
        sqrt(a.squared_error + b.squared_error) AS error,
        (a.squared_error + b.squared_error) ** 2
            / nullif(a.squared_error ** 2 / nullif(a.runs - 1, 0) + b.squared_error ** 2 / nullif(b.runs - 1, 0), 0) AS freedom,
        a.simulated OR b.simulated AS simulated
    FROM models AS a
    JOIN models AS b ON a.case_id = b.case_id AND a.yardstick = b.yardstick AND a.model < b.model
)
SELECT
    case_id, model_a, model_b, runs_a, runs_b, failed_a, failed_b, mean_a, mean_b, difference,
    difference - log.t_quantile(freedom) * error AS low, difference + log.t_quantile(freedom) * error AS high, freedom,
    CASE
        WHEN least(runs_a, runs_b) < 2 THEN 'not_enough_runs'
        WHEN error = 0 THEN 'no_spread'
        WHEN freedom < 5 THEN 'rough'
        ELSE 'enough'
    END AS state,
    judge_model, yardstick, simulated
FROM pairs
ORDER BY case_id, yardstick, model_a, model_b
