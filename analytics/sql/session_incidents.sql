-- purpose: the incidents of a project whose evidence names a session, through one of its exchanges or its run
-- grain: one row per incident in its latest revision, newest first
-- parameters: $project, $connection, $session
WITH latest AS (
    SELECT incident_id, max((revision, _offset)) AS version FROM log.incidents WHERE project = $project GROUP BY incident_id
), named AS (
    SELECT l.incident_id, l.version
    FROM latest AS l
    JOIN log.incident_outlines AS o ON o.incident_id = l.incident_id AND o.version = l.version[1]
    WHERE list_contains(o.sessions, $connection || '/' || $session)
)
SELECT
    i.incident_id, i.title, i.type, i.tier, i.severity, i.confidence, log.incident_status(i.status) AS status, i.detected_at
FROM log.incidents AS i
JOIN named AS n ON n.incident_id = i.incident_id AND n.version = (i.revision, i._offset)
WHERE i.project = $project
ORDER BY i.detected_at DESC, i.incident_id
