-- purpose: the weekly trust of each agent
-- grain: one row per project, agent and ISO week (by the end of the session) with runs that have evidence
-- parameters: $project (NULL: all)
SELECT
    project, coalesce(agent, '') AS agent, date_trunc('week', coalesce(ended_at, closed_at))::DATE AS week,
    count(*) AS runs, round(avg(trust_score), 1) AS mean_trust, min(trust_score) AS lowest_trust,
    count(*) FILTER (readiness_level = 'unsafe_for_production') AS unsafe_runs
FROM diagnoses
WHERE trust_score IS NOT NULL AND ($project IS NULL OR project = $project)
GROUP BY ALL
ORDER BY project, agent, week
