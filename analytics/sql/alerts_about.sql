-- purpose: the alerts about one incident and the state of their delivery
-- grain: one row per alert, oldest first
-- parameters: $project, $subject (id of the incident)
SELECT alert_id, channel, kind, severity, created_at, not_before, attempts, status, settled_at, last_error
FROM log.alerts
WHERE project = $project AND kind IN ('incident', 'resolved') AND subject_id = $subject
ORDER BY created_at, alert_id
