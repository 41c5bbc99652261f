-- purpose: the answer quality (Tier 2) of an agent in a project by day, with the 95% confidence interval of its mean
-- grain: one row per UTC day with scores, oldest first. mean: a judged exchange counts 1 / sampling_probability times;
--     half: half the width of the interval (Student's t with the effective sample size), NULL for fewer than two scores
-- parameters: $project, $agent, $from (inclusive) and $to (exclusive) of the time of the exchange
WITH measured AS (
    SELECT
        day, sum(tier2_count)::BIGINT AS scores, log.mean_of(sum(weight * tier2_count), sum(weight * tier2_sum)) AS mean,
        log.weighted_deviation_of(sum(weight * tier2_count), sum(weight * tier2_sum), sum(weight * tier2_squares)) AS deviation,
        sum(weight * tier2_count) ** 2 / nullif(sum(weight ** 2 * tier2_count), 0) AS effective
    FROM log.score_days($project, $from::TIMESTAMP, $to::TIMESTAMP)
    WHERE project = $project AND agent = $agent AND tier2_count > 0
    GROUP BY day
)
SELECT day AS period, scores, mean, log.t_quantile(effective - 1) * deviation / sqrt(greatest(effective - 1, 0)) AS half
FROM measured
ORDER BY day
