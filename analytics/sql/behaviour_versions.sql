-- purpose: the sums of behaviour of the agents of projects that have a new version, by version, for the comparison of versions side by side
-- grain: one row per project, agent, series, version (label agent_version) and UTC day, oldest first. See `behaviour_days`; low and high: the
--     least and the greatest mean of a session; is_new: the version came since $new_since and has turns since $recent_since
-- parameters: $projects, $since (inclusive) and $until (exclusive), $new_since, $recent_since, $limit (the number of new versions of a project with
--     most turns that are compared)
WITH versions AS (
    SELECT
        project, agent, version, sum(weight) AS turns,
        min(hour) >= $new_since::TIMESTAMP AND max(last_at) >= $recent_since::TIMESTAMP AND count(*) OVER (PARTITION BY project, agent) > 1
            AS is_new
    FROM log.hourly_behaviour
    WHERE project IN (FROM unnest($projects::VARCHAR[])) AND series = 'failed' AND version <> '' AND hour >= $since::TIMESTAMP AND last_at < $until::TIMESTAMP
    GROUP BY project, agent, version
), compared AS (
    SELECT project, agent, version
    FROM versions
    WHERE is_new
    QUALIFY row_number() OVER (PARTITION BY project ORDER BY turns DESC, agent, version) <= $limit
)
SELECT
    b.project, b.agent, b.series, b.version, (b.project, b.agent, b.version) IN (FROM compared) AS is_new, max(b.last_at) AS last_at, sum(units)::BIGINT AS units,
    sum(weight)::BIGINT AS weight, sum(total)::BIGINT / 1e9 AS total, sum(squares)::BIGINT AS squares,
    sum(mixed::HUGEINT)::DOUBLE / 1e9 AS mixed, sum(totals::HUGEINT)::DOUBLE / 1e18 AS totals, min(low) AS low, max(high) AS high
FROM log.hourly_behaviour AS b
WHERE b.version <> '' AND hour >= $since::TIMESTAMP AND last_at < $until::TIMESTAMP
    AND (b.project, b.agent) IN (SELECT (project, agent) FROM compared)
GROUP BY b.project, b.agent, b.series, b.version, b.hour::DATE
ORDER BY b.project, b.agent, b.series, b.version, last_at
