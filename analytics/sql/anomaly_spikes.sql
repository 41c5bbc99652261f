-- purpose: projects whose anomaly rate rose within the last 14 UTC days, compared with the days before the rise
--     (`audit.drift.anomaly_rate`). Days count by the time of the exchange, including days excluded by a decision
-- grain: one row per project with a spike, the most certain first. first_day: most probable first day of the higher
--     rate; anomalies, exchanges, rate: since first_day; anomalies_before, exchanges_before, rate_before: up to 90
--     days before it; ratio: rate / rate_before, NULL without anomalies before; log_evidence: natural logarithm of
--     the likelihood ratio for a higher rate, up to about 690; confirmed: the ratio is at least 1,000,000; severity:
--     critical from three times the rate before
-- parameters: $project (NULL: all except anchor projects), $as_of (exclusive end)
WITH days AS (
    SELECT project, day, sum(anomalies)::BIGINT AS anomalies, sum(exchanges)::BIGINT AS exchanges
    FROM log.score_days($project, log.first_day_of($as_of::TIMESTAMP, 90), $as_of::TIMESTAMP)
    WHERE log.matches_project(project, $project)
    GROUP BY project, day
    HAVING sum(exchanges) > 0
), summed AS (
    SELECT
        project, day, sum(anomalies) OVER project_days AS all_anomalies, sum(exchanges) OVER project_days AS all_exchanges,
        count(*) OVER earlier AS days_before,
        coalesce(sum(anomalies) OVER earlier, 0) AS prior_anomalies, coalesce(sum(exchanges) OVER earlier, 0) AS prior_exchanges,
        sum(anomalies ** 2 / exchanges) OVER earlier AS squares
    FROM days
    WINDOW project_days AS (PARTITION BY project),
        earlier AS (PARTITION BY project ORDER BY day ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), candidates AS (
    SELECT
        *, all_anomalies - prior_anomalies AS anomalies, all_exchanges - prior_exchanges AS exchanges,
        prior_anomalies / prior_exchanges AS rate_before, 1 - prior_exchanges / all_exchanges AS share,
        CASE
            WHEN prior_anomalies > 0 AND prior_anomalies < prior_exchanges THEN greatest(
                1,
                (squares - prior_anomalies ** 2 / prior_exchanges)
                    / (prior_anomalies / prior_exchanges * (1 - prior_anomalies / prior_exchanges)) / (days_before - 1)
            )
            ELSE 1
        END AS dispersion
    FROM summed
    WHERE days_before >= 7 AND day >= log.first_day_of($as_of::TIMESTAMP, 14)
), weighted AS (
    SELECT
        project, day, anomalies, exchanges, prior_anomalies, prior_exchanges, rate_before,
        avg(exp(least(
            690, (anomalies * ln(factor) - (anomalies + prior_anomalies) * ln(factor * share + 1 - share)) / dispersion
        ))) AS evidence
    FROM candidates, (VALUES (1.5), (2.0), (3.0), (5.0)) AS ratios (factor)
    GROUP BY ALL
), best AS (
    SELECT
        project, sum(evidence) AS evidence, arg_max(weighted, (evidence, -epoch(day))) AS first
    FROM weighted
    GROUP BY project
)
SELECT
    project, CASE WHEN anomalies / exchanges >= 3 * coalesce(nullif(rate_before, 0), 1 / prior_exchanges) THEN 'critical'
        ELSE 'warning' END AS severity,
    evidence >= 1e6 AS confirmed, day::DATE AS first_day, anomalies::BIGINT AS anomalies, exchanges::BIGINT AS exchanges,
    anomalies / exchanges AS rate,
    prior_anomalies::BIGINT AS anomalies_before, prior_exchanges::BIGINT AS exchanges_before, rate_before,
    anomalies / exchanges / nullif(rate_before, 0) AS ratio,
    ln(evidence) AS log_evidence
FROM (SELECT project, evidence, first.* EXCLUDE (project, evidence) FROM best)
WHERE evidence >= 150 AND anomalies >= 2
ORDER BY evidence DESC, project
