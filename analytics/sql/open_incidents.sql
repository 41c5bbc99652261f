-- purpose: the number of open and acknowledged incidents that are not snoozed, and of the confirmed ones among them without notices
-- grain: one row per project with any
-- parameters: $project (NULL: all), $now (NULL: snoozed ones count)
SELECT project, count(*) AS incidents, count(*) FILTER (confidence = 'confirmed' AND severity <> 'notice') AS confirmed
FROM incidents
WHERE ($project::VARCHAR IS NULL OR project = $project::VARCHAR) AND status IN ('open', 'acknowledged')
    AND ($now::TIMESTAMP IS NULL OR NOT log.is_snoozed(snoozed_at, snoozed_until, woken_at, $now::TIMESTAMP))
GROUP BY project
ORDER BY project
