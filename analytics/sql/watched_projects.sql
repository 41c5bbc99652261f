-- purpose: which projects have exchanges or finished runs with runtime events of late, those that hold anchors left out: the watch checks them by the clock
-- grain: one row per project
-- parameters: $since (only projects with exchanges on that UTC day or later, or with runs that ended then)
SELECT DISTINCT project
FROM (
    SELECT project FROM log.daily_scores WHERE day >= date_trunc('day', $since::TIMESTAMP)
    UNION ALL
    SELECT project FROM log.diagnoses WHERE event_count > 0 AND coalesce(ended_at, closed_at) >= date_trunc('day', $since::TIMESTAMP)
)
WHERE NOT starts_with(project, 'anchors.')
ORDER BY project
