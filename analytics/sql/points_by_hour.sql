-- purpose: the hourly points of a project's charts over a few days: each tier with the 95% confidence interval of
--     its mean, anomalies and exchanges
-- grain: one row per UTC hour with scores, oldest first. mean: a judged exchange counts 1 / sampling_probability
--     times, except in Tier 1; weight: number of exchanges that the scores represent; half: half the width of the
--     interval (Student's t with the effective sample size), NULL for fewer than two scores
-- parameters: $project, $from (inclusive) and $to (exclusive) of the time of the exchange
WITH current AS (
    SELECT
        date_trunc('hour', exchange_at) AS hour, anomaly, disposition, 1 / coalesce(sampling_probability, 1) AS weight, tier1_score,
        CASE WHEN tier2_state = 'scored' THEN tier2_score END AS tier2_score,
        CASE WHEN tier2_5_state = 'scored' THEN tier2_5_alignment END AS tier2_5_score,
        CASE WHEN tier3_state = 'scored' THEN tier3_score END AS tier3_score
    FROM log.scores
    WHERE project = $project AND exchange_at >= $from::TIMESTAMP AND exchange_at < $to::TIMESTAMP
    -- The time of an exchange never changes, and sorting by time is faster than by id.
    QUALIFY row_number() OVER (PARTITION BY exchange_at, score_id ORDER BY revision DESC, _offset DESC) = 1
), scored AS (
    SELECT hour, 'tier1' AS tier, 1 AS weight, tier1_score AS score FROM current
    UNION ALL
    SELECT hour, 'tier2' AS tier, weight AS weight, tier2_score AS score FROM current
    UNION ALL
    SELECT hour, 'tier2_5' AS tier, weight AS weight, tier2_5_score AS score FROM current
    UNION ALL
    SELECT hour, 'tier3' AS tier, weight AS weight, tier3_score AS score FROM current
), measured AS (
    SELECT
        hour, tier, count(*) AS scores, sum(weight * score) / sum(weight) AS mean,
        sqrt(greatest(0, sum(weight * score ** 2) / sum(weight) - (sum(weight * score) / sum(weight)) ** 2)) AS deviation,
        sum(weight) AS weight, sum(weight) ** 2 / sum(weight ** 2) AS effective
    FROM scored
    WHERE score IS NOT NULL
    GROUP BY hour, tier
), counted AS (
    SELECT
        hour, count(*) FILTER (anomaly) AS anomaly_count, count(*) AS exchange_count,
        count(*) FILTER (disposition = 'scored') AS judged_count
    FROM current
    GROUP BY hour
)
SELECT
    c.hour AS period, any_value(anomaly_count) AS anomaly_count, any_value(exchange_count) AS exchange_count,
    any_value(judged_count) AS judged_count,
    coalesce(
        list({tier: tier, scores: scores, weight: round(weight, 9), mean: round(mean, 12),
            half: log.t_quantile(effective - 1) * deviation / sqrt(greatest(effective - 1, 0))} ORDER BY tier)
            FILTER (tier IS NOT NULL),
        []
    ) AS tiers
FROM counted AS c
LEFT JOIN measured AS m ON c.hour = m.hour
GROUP BY c.hour
ORDER BY period
