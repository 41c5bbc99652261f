-- purpose: the failures of each agent, with the number of sessions and of critical ones
-- grain: one row per agent and failure type
-- parameters: $project (NULL: all)
WITH causes AS (
    SELECT project, coalesce(agent, '') AS agent, (connection, session_id) AS session, unnest(failure_causes) AS cause
    FROM diagnoses
    WHERE $project IS NULL OR project = $project
)
SELECT
    project, agent, cause.type AS failure_type, count(DISTINCT session) AS sessions,
    count(DISTINCT session) FILTER (cause.severity = 'critical') AS critical, min(cause.impact_score) AS worst_impact
FROM causes
GROUP BY ALL
ORDER BY sessions DESC, project, agent, failure_type
