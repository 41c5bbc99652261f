-- purpose: the incidents of the given projects in their latest revision
-- grain: one row per incident, with the columns of its record, oldest first
-- parameters: $projects (list)
WITH latest AS (
    -- Evidence is most of an incident's data, so read it only for the latest revisions and never sort it.
    SELECT incident_id, max((revision, _offset)) AS version
    FROM log.incidents
    WHERE list_contains($projects::VARCHAR[], project)
    GROUP BY incident_id
)
SELECT
    i.* EXCLUDE (_topic, _partition, _offset)
    REPLACE (
        log.incident_status(status) AS status, log.incident_resolution(status, resolution) AS resolution,
        log.incident_assignee(assignee, assigned_at, acknowledged_by) AS assignee
    )
FROM log.incidents AS i
JOIN latest AS l ON i.incident_id = l.incident_id AND (i.revision, i._offset) = version
ORDER BY project, detected_at, i.incident_id
