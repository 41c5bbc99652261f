-- purpose: the levels of a series of each project day by day, for the small charts of the fleet
-- grain: one row per project and series that is asked for and has a day with a value, by project and series: back: how many days before the last one that had begun by $as_of, oldest first; level: that day's mean (a judged exchange counts 1 / sampling_probability times), or the share of exchanges with an anomaly
-- parameters: $project (NULL for all), $since (nothing before is looked at), $projects and $series (lists of the same length: tier1, tier2, tier2_5, tier3 or anomaly_spike of that project), $as_of (days that begin then or later are left out), $days
WITH asked AS MATERIALIZED (
    SELECT unnest($projects::VARCHAR[]) AS project, unnest($series::VARCHAR[]) AS series
), days AS MATERIALIZED (
    SELECT
        project, series, day,
        sum(CASE series
            WHEN 'tier1' THEN tier1_count WHEN 'tier2' THEN weight * tier2_count WHEN 'tier2_5' THEN weight * tier2_5_count
            WHEN 'tier3' THEN weight * tier3_count WHEN 'anomaly_spike' THEN exchanges
        END) AS n,
        sum(CASE series
            WHEN 'tier1' THEN tier1_sum WHEN 'tier2' THEN weight * tier2_sum WHEN 'tier2_5' THEN weight * tier2_5_sum
            WHEN 'tier3' THEN weight * tier3_sum WHEN 'anomaly_spike' THEN anomalies
        END) AS total
    FROM log.score_days($project, date_trunc('day', $since::TIMESTAMP), TIMESTAMP '2100-01-01')
    JOIN asked USING (project)
    WHERE day < $as_of::TIMESTAMP
    GROUP BY project, series, day
), placed AS (
    SELECT
        project, series, date_diff('day', day, log.first_day_of($as_of::TIMESTAMP, 1)) AS back,
        CASE series WHEN 'anomaly_spike' THEN total / n ELSE log.mean_of(n, total) END AS level
    FROM days
)
SELECT project, series, list(back ORDER BY back DESC) AS back, list(round(level, 4) ORDER BY back DESC) AS level
FROM placed
WHERE level IS NOT NULL AND back < $days
GROUP BY project, series
ORDER BY project, series
