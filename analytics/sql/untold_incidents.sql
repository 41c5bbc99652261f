-- purpose: recently checked live incidents without an alert at their current severity and confidence since they were
--     reopened; notices and snoozed ones need none
-- grain: one row per incident in its latest revision
-- parameters: $since (inclusive, by the newest check), $now
SELECT i.*
FROM incidents AS i
WHERE i.status IN ('open', 'acknowledged') AND i.severity <> 'notice' AND coalesce(i.checked_at, i.detected_at) >= $since::TIMESTAMP
    AND NOT log.is_snoozed(i.snoozed_at, i.snoozed_until, i.woken_at, $now::TIMESTAMP)
    AND NOT EXISTS (
        FROM log.alerts AS a
        WHERE a.kind = 'incident' AND a.subject_id = i.incident_id AND a.severity = i.severity
            AND (i.confirmed_at IS NULL OR a.created_at >= i.confirmed_at)
            AND NOT EXISTS (
                FROM log.alerts AS r
                WHERE r.kind = 'resolved' AND r.subject_id = a.subject_id AND r.created_at >= a.created_at
            )
    )
ORDER BY i.detected_at, i.incident_id
