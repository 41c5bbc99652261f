-- purpose: which projects have runs with runtime events that were finished of late, those that hold anchors left out: the watch checks them soon
-- grain: one row per project
-- parameters: $since (inclusive), when runs were closed
SELECT DISTINCT project
FROM log.diagnoses
WHERE event_count > 0 AND closed_at >= $since::TIMESTAMP AND NOT starts_with(project, 'anchors.')
ORDER BY project
