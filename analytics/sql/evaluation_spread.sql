-- purpose: how much a judge's repeated answers to the same question vary, by dimension: largest minus smallest score
--     of the repetitions
-- grain: one row per judge, configured number of repetitions and dimension (overall: the final score), over
--     evaluations with at least two answers. A run counts once per case and yardstick
-- parameters: $project, $case (NULL: all)
WITH counted AS (
    SELECT judge_model, configured_repetitions, dimensions, overall_spread, simulated
    FROM log.current_evaluations($project)
    WHERE successful_iterations >= 2 AND ($case IS NULL OR case_id = $case)
), spreads AS (
    SELECT judge_model, configured_repetitions, simulated, 'overall' AS dimension, overall_spread AS spread
    FROM counted
    UNION ALL
    SELECT judge_model, configured_repetitions, simulated, item.dimension, item.spread
    FROM (SELECT judge_model, configured_repetitions, simulated, unnest(dimensions) AS item FROM counted)
)
SELECT
    judge_model, configured_repetitions, dimension, count(*) AS evaluations, avg(spread ORDER BY spread) AS mean, median(spread) AS median,
    max(spread) AS largest, bool_or(simulated) AS simulated
FROM spreads
WHERE spread IS NOT NULL
GROUP BY judge_model, configured_repetitions, dimension
ORDER BY judge_model, configured_repetitions, dimension
