-- purpose: the strata of the exchanges that Tier 3 judged, from which human scores are weighted and the next label is chosen
-- grain: one row per stratum with exchanges. class: anomaly, unsure or routine; is_sampled: whether the exchanges were
--     sampled with a probability below 1; judged: their number, over the days that retention has kept; represented: the
--     number of exchanges that they stand for
-- parameters: $project, $from (inclusive) and $to (exclusive) by event time of the exchange (NULL: unbounded)
WITH retained AS (
    SELECT date_trunc('day', make_timestamp(max(next_position))) AS since
    FROM log.watermarks
    WHERE consumer IN ('retention', 'cold') AND topic = $project
), days AS (
    SELECT d.weight, d.rated_anomalies, d.rated_unsure, d.rated_routine
    FROM log.score_days(
        $project, coalesce($from::TIMESTAMP, TIMESTAMP '1970-01-01'), coalesce($to::TIMESTAMP, TIMESTAMP '9999-12-31')
    ) AS d, retained
    WHERE d.day >= coalesce(retained.since, TIMESTAMP '1970-01-01')
), counted AS (
    SELECT 'anomaly' AS class, weight, rated_anomalies AS judged FROM days
    UNION ALL
    SELECT 'unsure' AS class, weight, rated_unsure AS judged FROM days
    UNION ALL
    SELECT 'routine' AS class, weight, rated_routine AS judged FROM days
)
SELECT
    class, weight > 1 AS is_sampled, sum(judged)::BIGINT AS judged,
    sum((weight * judged)::DOUBLE ORDER BY weight, judged) AS represented  -- a sum of floating-point numbers depends on their order
FROM counted
GROUP BY ALL
HAVING sum(judged) > 0
ORDER BY class, is_sampled
