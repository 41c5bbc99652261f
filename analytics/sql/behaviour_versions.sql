-- purpose: the sums of behaviour of the agents of a project that have a new version, by version, for the comparison of versions side by side
-- grain: one row per agent, series, version (label agent_version) and UTC day, oldest first. See `behaviour_days`; low and high: the
--     least and the greatest mean of a session; is_new: the version came since $new_since and has turns since $recent_since
-- parameters: $project, $since (inclusive) and $until (exclusive), $new_since, $recent_since, $limit (the number of new versions with most turns that are
--     compared)
WITH versions AS (
    SELECT
        agent, version, sum(weight) AS turns,
        min(hour) >= $new_since::TIMESTAMP AND max(last_at) >= $recent_since::TIMESTAMP AND count(*) OVER (PARTITION BY agent) > 1
            AS is_new
    FROM log.hourly_behaviour
    WHERE project = $project AND series = 'failed' AND version <> '' AND hour >= $since::TIMESTAMP AND last_at < $until::TIMESTAMP
    GROUP BY agent, version
), compared AS (
    SELECT agent, version FROM versions WHERE is_new ORDER BY turns DESC, agent, version LIMIT $limit
)
SELECT
    b.agent, b.series, b.version, (b.agent, b.version) IN (FROM compared) AS is_new, max(b.last_at) AS last_at, sum(units)::BIGINT AS units,
    sum(weight)::BIGINT AS weight, sum(total)::BIGINT / 1e9 AS total, sum(squares)::BIGINT AS squares,
    sum(mixed::HUGEINT)::DOUBLE / 1e9 AS mixed, sum(totals::HUGEINT)::DOUBLE / 1e18 AS totals, min(low) AS low, max(high) AS high
FROM log.hourly_behaviour AS b
WHERE b.project = $project AND b.version <> '' AND hour >= $since::TIMESTAMP AND last_at < $until::TIMESTAMP AND b.agent IN (SELECT agent FROM compared)
GROUP BY b.agent, b.series, b.version, b.hour::DATE
ORDER BY b.agent, b.series, b.version, last_at
