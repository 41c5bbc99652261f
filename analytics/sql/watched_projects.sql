-- purpose: which projects have exchanges of late, those that hold anchors left out: the watch checks them by the clock
-- grain: one row a project
-- parameters: $since (only projects with exchanges on that UTC day or later)
SELECT DISTINCT project
FROM log.daily_scores
WHERE day >= date_trunc('day', $since::TIMESTAMP) AND NOT starts_with(project, 'anchors.')
ORDER BY project
