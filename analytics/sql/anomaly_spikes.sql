-- purpose: projects whose rate of anomalies over the last three UTC days is more than twice that of their latest baseline, and more than chance; by the day of the exchange, whenever it was scored
-- grain: one row a project with a spike, the largest first; critical above three times; rates: anomalies an exchange; ratio: NULL where the baseline has no anomaly: then it is taken to be one in all its exchanges; more than chance: less probable than 0.001 where the rate is the same (conditional test of two Poisson rates)
-- parameters: $project (NULL for all but those of anchors), $as_of (what happened then or later is left out, and so are baselines computed later)
WITH lately AS (
    SELECT project, sum(anomalies)::BIGINT AS anomalies, sum(exchanges)::BIGINT AS exchanges
    FROM log.score_days($project, log.first_day_of($as_of::TIMESTAMP, 3), $as_of::TIMESTAMP)
    WHERE log.is_asked(project, $project)
    GROUP BY project
), latest AS (
    SELECT project, baseline_id, anomaly_rate AS baseline_rate, exchange_count AS baseline_exchanges
    FROM log.baselines
    WHERE log.is_asked(project, $project) AND computed_at <= $as_of::TIMESTAMP
    QUALIFY row_number() OVER (PARTITION BY project ORDER BY computed_at DESC, window_start, baseline_id) = 1
), compared AS (
    SELECT
        *, anomalies / exchanges AS rate, coalesce(nullif(baseline_rate, 0), 1 / baseline_exchanges) AS expected,
        round(baseline_rate * baseline_exchanges) AS before, exchanges / (exchanges + baseline_exchanges) AS share
    FROM lately
    JOIN latest USING (project)
    WHERE baseline_exchanges > 0 AND baseline_rate IS NOT NULL AND anomalies >= 2
), weighed AS (
    SELECT
        *, before / (anomalies + 1) * share / (1 - share) AS ratio_of_terms,
        lgamma(anomalies + before + 1) - lgamma(anomalies + 1) - lgamma(before + 1) + anomalies * ln(share)
        + before * ln(1 - share) AS first_term
    FROM compared
)
SELECT
    project, CASE WHEN rate > 3 * expected THEN 'critical' ELSE 'warning' END AS severity, anomalies, exchanges, rate,
    baseline_rate, rate / nullif(baseline_rate, 0) AS ratio, baseline_id
FROM weighed
WHERE rate > 2 * expected AND ratio_of_terms < 1 AND exp(first_term) / (1 - ratio_of_terms) <= 0.001
ORDER BY rate / expected DESC, project
