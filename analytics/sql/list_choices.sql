-- purpose: the names by which lists of a project, or of all projects, can be filtered: agents, versions and tools
-- grain: one row per kind (agent, version or tool) and value, at most $limit of each kind, those of most sessions
-- parameters: $project (NULL: all), $since (inclusive) and $until (exclusive) of the hour, $limit
WITH hours AS (
    SELECT agent, version, series, sum(units)::BIGINT AS units
    FROM log.hourly_behaviour
    WHERE log.matches_project(project, $project) AND hour >= $since::TIMESTAMP AND hour < $until::TIMESTAMP
    GROUP BY agent, version, series
), named AS (
    SELECT 'agent' AS kind, agent AS value, units FROM hours
    UNION ALL
    SELECT 'version', version, units FROM hours
    UNION ALL
    SELECT 'tool', substr(series, 13), units FROM hours WHERE starts_with(series, 'tool_errors:') AND series <> 'tool_errors:*'
)
SELECT kind, value
FROM named
WHERE value <> ''
GROUP BY kind, value
QUALIFY row_number() OVER (PARTITION BY kind ORDER BY sum(units) DESC, value) <= $limit
ORDER BY kind, value
