-- purpose: projects with recently closed runs that have runtime events, for the watch to check soon. Anchor projects
--     are excluded
-- grain: one row per project
-- parameters: $since (inclusive, by the closing of the run)
SELECT DISTINCT project
FROM log.diagnoses
WHERE event_count > 0 AND closed_at >= $since::TIMESTAMP AND NOT starts_with(project, 'anchors.')
ORDER BY project
