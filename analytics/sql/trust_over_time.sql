-- purpose: how far each agent can be trusted, week by week
-- grain: one row per agent and ISO week (by the end of the session), runs without evidence left out, and weeks without others
-- parameters: $project (NULL for all)
SELECT
    project, coalesce(agent, '') AS agent, date_trunc('week', coalesce(ended_at, closed_at))::DATE AS week,
    count(*) AS runs, round(avg(trust_score), 1) AS mean_trust, min(trust_score) AS lowest_trust,
    count(*) FILTER (readiness_level = 'unsafe_for_production') AS unsafe_runs
FROM diagnoses
WHERE trust_score IS NOT NULL AND ($project IS NULL OR project = $project)
GROUP BY ALL
ORDER BY project, agent, week
