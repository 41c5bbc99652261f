-- purpose: the number of runs of each agent of a project per readiness level, by their latest diagnosis
-- grain: one row per agent. agent: NULL for runs without an agent; without_evidence: runs of exchanges only
-- parameters: $project
SELECT
    agent, count(*) AS runs,
    count(*) FILTER (readiness_level = 'unsafe_for_production') AS unsafe,
    count(*) FILTER (readiness_level = 'review_recommended') AS review,
    count(*) FILTER (readiness_level = 'ready_for_runtime') AS ready,
    count(*) FILTER (readiness_level = 'insufficient_evidence') AS without_evidence
FROM diagnoses
WHERE project = $project
GROUP BY agent
ORDER BY unsafe DESC, review DESC, agent NULLS LAST
