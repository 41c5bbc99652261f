-- purpose: the sums of behaviour that the watch compares, for the series of a project that may have changed
-- grain: one row per agent, series and hour, oldest first within a series; before $coarse_until per six hours. See `behaviour_days`;
--     low and high: the least and the greatest mean of a session
-- parameters: $project, $agents and $series (lists of equal length: the series to read), $since (inclusive) and $until (exclusive),
--     $coarse_until
WITH requested AS (
    SELECT unnest($agents::VARCHAR[]) AS agent, unnest($series::VARCHAR[]) AS series
)
SELECT
    agent, series, max(last_at) AS last_at, sum(units)::BIGINT AS units, sum(weight)::BIGINT AS weight, sum(total)::BIGINT / 1e9 AS total,
    sum(squares)::BIGINT AS squares, sum(mixed::HUGEINT)::DOUBLE / 1e9 AS mixed, sum(totals::HUGEINT)::DOUBLE / 1e18 AS totals,
    min(low) AS low, max(high) AS high
FROM log.hourly_behaviour
SEMI JOIN requested USING (agent, series)
WHERE project = $project AND hour >= $since::TIMESTAMP AND last_at < $until::TIMESTAMP
GROUP BY agent, series, CASE WHEN hour < $coarse_until::TIMESTAMP THEN time_bucket(INTERVAL 6 HOUR, hour) ELSE hour END
ORDER BY agent, series, last_at
