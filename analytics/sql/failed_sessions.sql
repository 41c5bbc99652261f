-- purpose: the sessions that are not ready for runtime, each with its primary cause, by readiness (worst first), then
--     by trust (lowest first)
-- grain: one row per session
-- parameters: $project (NULL: all), $limit
SELECT
    project, coalesce(agent, '') AS agent, session_id, coalesce(ended_at, closed_at) AS ended_at, readiness_level, trust_score,
    primary_failure_type, primary_severity,
    [
        c.description FOR c IN failure_causes IF c.impact_score = list_min([o.impact_score FOR o IN failure_causes])
    ][1] AS description,
    [c.type FOR c IN failure_causes] AS failure_types
FROM diagnoses
WHERE readiness_level IN ('unsafe_for_production', 'review_recommended') AND ($project IS NULL OR project = $project)
ORDER BY readiness_level = 'review_recommended', trust_score, ended_at, connection, session_id
LIMIT $limit
