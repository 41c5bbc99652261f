-- purpose: how many confirmed incidents wait for somebody: those that are open or acknowledged
-- grain: one row per project that has some
-- parameters: $project (NULL for all)
SELECT project, count(*) AS incidents
FROM incidents
WHERE ($project::VARCHAR IS NULL OR project = $project::VARCHAR) AND status IN ('open', 'acknowledged') AND confidence = 'confirmed'
GROUP BY project
ORDER BY project
