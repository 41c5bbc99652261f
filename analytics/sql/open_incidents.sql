-- purpose: how many incidents wait for somebody: those that are open or acknowledged, and how many of them are confirmed
-- grain: one row per project that has some
-- parameters: $project (NULL for all)
SELECT project, count(*) AS incidents, count(*) FILTER (confidence = 'confirmed') AS confirmed
FROM incidents
WHERE ($project::VARCHAR IS NULL OR project = $project::VARCHAR) AND status IN ('open', 'acknowledged')
GROUP BY project
ORDER BY project
