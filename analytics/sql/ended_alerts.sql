-- purpose: alerts about incidents that have ended since then, whose receivers have not been told so
-- grain: one row per alert that was not given up, with its incident's end; oldest first
-- parameters: $since (inclusive, by the end of the incident)
SELECT
    a.* EXCLUDE (_topic, _partition, _offset),
    i.title, i.status AS incident_status, i.resolution, i.resolved_at, i.resolved_by
FROM log.alerts AS a JOIN incidents AS i ON i.incident_id = a.subject_id AND i.project = a.project
WHERE a.kind = 'incident' AND a.status <> 'given_up'
    AND i.status IN ('resolved', 'dismissed') AND i.resolved_at >= $since::TIMESTAMP
    AND NOT EXISTS (
        FROM log.alerts AS r
        WHERE r.kind = 'resolved' AND r.channel = a.channel AND r.subject_id = a.subject_id AND r.created_at >= a.created_at
    )
ORDER BY a.created_at, a.alert_id
