-- purpose: how far a judge's own answers to one question lie apart, by dimension: the largest less the smallest score over the repetitions
-- grain: one row per judge, number of repetitions asked for and dimension (overall: the judge's verdict), over evaluations with two answers or more; a run counts once for each case and yardstick
-- parameters: $project, $case (NULL for all)
WITH counted AS (
    SELECT judge_model, configured_repetitions, dimensions, overall_spread, simulated
    FROM log.counted_evaluations($project)
    WHERE successful_iterations >= 2 AND ($case IS NULL OR case_id = $case)
), spreads AS (
    SELECT judge_model, configured_repetitions, simulated, 'overall' AS dimension, overall_spread AS spread
    FROM counted
    UNION ALL
    SELECT judge_model, configured_repetitions, simulated, one.dimension, one.spread
    FROM (SELECT judge_model, configured_repetitions, simulated, unnest(dimensions) AS one FROM counted)
)
SELECT
    judge_model, configured_repetitions, dimension, count(*) AS evaluations, avg(spread ORDER BY spread) AS mean, median(spread) AS median,
    max(spread) AS largest, bool_or(simulated) AS simulated
FROM spreads
WHERE spread IS NOT NULL
GROUP BY judge_model, configured_repetitions, dimension
ORDER BY judge_model, configured_repetitions, dimension
