-- purpose: recently checked live incidents without an alert at their current severity and confidence; notices need none
-- grain: one row per incident in its latest revision
-- parameters: $since (inclusive, by the newest check)
SELECT i.*
FROM incidents AS i
WHERE i.status IN ('open', 'acknowledged') AND i.severity <> 'notice' AND coalesce(i.checked_at, i.detected_at) >= $since::TIMESTAMP
    AND NOT EXISTS (
        FROM log.alerts AS a
        WHERE a.kind = 'incident' AND a.subject_id = i.incident_id AND a.severity = i.severity
            AND (i.confirmed_at IS NULL OR a.created_at >= i.confirmed_at)
    )
ORDER BY i.detected_at, i.incident_id
