-- purpose: the daily levels of one series per project, for the small charts of the fleet
-- grain: one row per project and requested series with data, by project and series. back: list of days before the
--     last day that began before $as_of, oldest first; level: that day's mean (a judged exchange counts 1 /
--     sampling_probability times) or the share of anomalous exchanges
-- parameters: $project (NULL: all), $since (inclusive), $projects and $series (parallel lists; a series is tier1,
--     tier2, tier2_5, tier3 or anomaly_spike), $as_of (exclusive, by the start of a day), $days
WITH requested AS MATERIALIZED (
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
    JOIN requested USING (project)
    WHERE day < $as_of::TIMESTAMP
    GROUP BY project, series, day
), levels AS (
    SELECT
        project, series, date_diff('day', day, log.first_day_of($as_of::TIMESTAMP, 1)) AS back,
        CASE series WHEN 'anomaly_spike' THEN total / n ELSE log.mean_of(n, total) END AS level
    FROM days
)
SELECT project, series, list(back ORDER BY back DESC) AS back, list(round(level, 4) ORDER BY back DESC) AS level
FROM levels
WHERE level IS NOT NULL AND back < $days
GROUP BY project, series
ORDER BY project, series
