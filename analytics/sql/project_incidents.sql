-- purpose: the incidents of a project, newest first, a page at a time
-- grain: one row an incident in its latest revision, with the columns of its record
-- parameters: $project (NULL for all), $statuses (list, NULL: any), $type (NULL: any), $confidence (suspected or confirmed, NULL: any), $before_at and $before_id (detected_at and id of the last one that was shown; NULL for the first page), $limit
WITH latest AS (
    SELECT incident_id, max((revision, _offset)) AS version
    FROM log.incidents
    WHERE $project IS NULL OR project = $project
    GROUP BY incident_id
), page AS (
    -- Evidence is most of an incident; it is read of those alone that are shown.
    SELECT i.incident_id, version
    FROM log.incidents AS i
    JOIN latest AS l ON i.incident_id = l.incident_id AND (i.revision, i._offset) = version
    WHERE ($statuses::VARCHAR[] IS NULL OR list_contains($statuses::VARCHAR[], log.incident_status(status)))
        AND ($type IS NULL OR type = $type) AND ($confidence IS NULL OR confidence = $confidence)
        AND ($before_at IS NULL OR (detected_at, i.incident_id) < ($before_at::TIMESTAMP, $before_id::VARCHAR))
    ORDER BY detected_at DESC, i.incident_id DESC
    LIMIT $limit
)
SELECT
    i.* EXCLUDE (_topic, _partition, _offset)
    REPLACE (log.incident_status(status) AS status, log.incident_resolution(status, resolution) AS resolution)
FROM log.incidents AS i
JOIN page AS p ON i.incident_id = p.incident_id AND (i.revision, i._offset) = version
ORDER BY detected_at DESC, i.incident_id DESC
