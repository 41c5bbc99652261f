-- purpose: projects whose rate of anomalies has risen within the last 14 UTC days, against the days before it rose (`audit.drift.anomaly_rate`); by the day of the exchange, whenever it was scored; days that a decision has cut out count all the same
-- grain: one row per project with a spike, the most certain first; first_day: the most probable first day; anomalies, exchanges and rate since then, anomalies an exchange; the same before it, up to 90 days; ratio: NULL where there was no anomaly before; log_evidence: natural logarithm of how much better the days are explained by a rate that rose, up to about 690; confirmed from 1 000 000 on; critical from three times the rate before on
-- parameters: $project (NULL for all but those of anchors), $as_of (what happened then or later is left out)
WITH days AS (
    SELECT project, day, sum(anomalies)::BIGINT AS anomalies, sum(exchanges)::BIGINT AS exchanges
    FROM log.score_days($project, log.first_day_of($as_of::TIMESTAMP, 90), $as_of::TIMESTAMP)
    WHERE log.is_asked(project, $project)
    GROUP BY project, day
    HAVING sum(exchanges) > 0
), summed AS (
    SELECT
        project, day, sum(anomalies) OVER whole AS all_anomalies, sum(exchanges) OVER whole AS all_exchanges, count(*) OVER earlier AS days_before,
        coalesce(sum(anomalies) OVER earlier, 0) AS before, coalesce(sum(exchanges) OVER earlier, 0) AS asked, sum(anomalies ** 2 / exchanges) OVER earlier AS squares
    FROM days
    WINDOW whole AS (PARTITION BY project), earlier AS (PARTITION BY project ORDER BY day ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)
), tried AS (
    SELECT
        *, all_anomalies - before AS anomalies, all_exchanges - asked AS exchanges, before / asked AS rate_before, 1 - asked / all_exchanges AS share,
        CASE
            WHEN before > 0 AND before < asked THEN greatest(1, (squares - before ** 2 / asked) / (before / asked * (1 - before / asked)) / (days_before - 1))
            ELSE 1
        END AS dispersion
    FROM summed
    WHERE days_before >= 7 AND day >= log.first_day_of($as_of::TIMESTAMP, 14)
), weighed AS (
    SELECT
        project, day, anomalies, exchanges, before, asked, rate_before,
        avg(exp(least(690, (anomalies * ln(times) - (anomalies + before) * ln(times * share + 1 - share)) / dispersion))) AS evidence
    FROM tried, (VALUES (1.5), (2.0), (3.0), (5.0)) AS ratios (times)
    GROUP BY ALL
), best AS (
    SELECT
        project, sum(evidence) AS evidence, arg_max(weighed, (evidence, -epoch(day))) AS first
    FROM weighed
    GROUP BY project
)
SELECT
    project, CASE WHEN anomalies / exchanges >= 3 * coalesce(nullif(rate_before, 0), 1 / asked) THEN 'critical' ELSE 'warning' END AS severity,
    evidence >= 1e6 AS confirmed, day::DATE AS first_day, anomalies::BIGINT AS anomalies, exchanges::BIGINT AS exchanges, anomalies / exchanges AS rate,
    before::BIGINT AS anomalies_before, asked::BIGINT AS exchanges_before, rate_before, anomalies / exchanges / nullif(rate_before, 0) AS ratio,
    ln(evidence) AS log_evidence
FROM (SELECT project, evidence, first.* EXCLUDE (project, evidence) FROM best)
WHERE evidence >= 150 AND anomalies >= 2
ORDER BY evidence DESC, project
