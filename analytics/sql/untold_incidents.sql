-- purpose: open incidents that were seen of late, and of which no alert was ever made at the severity that they have now
-- grain: one row an incident, in its latest revision
-- parameters: $since
SELECT i.*
FROM incidents AS i
WHERE i.status = 'open' AND coalesce(i.checked_at, i.detected_at) >= $since::TIMESTAMP
    AND NOT EXISTS (
        FROM log.alerts AS a WHERE a.kind = 'incident' AND a.subject_id = i.incident_id AND a.severity = i.severity
    )
ORDER BY i.detected_at, i.incident_id
