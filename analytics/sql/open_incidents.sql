-- purpose: the number of open and acknowledged incidents, and of the confirmed ones among them without notices
-- grain: one row per project with any
-- parameters: $project (NULL: all)
SELECT project, count(*) AS incidents, count(*) FILTER (confidence = 'confirmed' AND severity <> 'notice') AS confirmed
FROM incidents
WHERE ($project::VARCHAR IS NULL OR project = $project::VARCHAR) AND status IN ('open', 'acknowledged')
GROUP BY project
ORDER BY project
