-- purpose: alerts and the state of their delivery
-- grain: one row per alert, newest first
-- parameters: $status (NULL: all), $project (NULL: all), $before_at and $before_id (the last alert of the previous
--     page; NULL: first page), $limit
SELECT
    alert_id, channel, kind, subject_id, project, severity, created_at, not_before, attempts, status, settled_at, last_error
FROM log.alerts
WHERE ($status IS NULL OR status = $status) AND ($project IS NULL OR project = $project)
    AND ($before_at IS NULL OR (created_at, alert_id) < ($before_at::TIMESTAMP, $before_id))
ORDER BY created_at DESC, alert_id DESC
LIMIT $limit
