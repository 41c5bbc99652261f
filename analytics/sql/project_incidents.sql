-- purpose: a page of a project's incidents, newest first
-- grain: one row per incident in its latest revision, with the columns of its record
-- parameters: $project (NULL: all), $statuses (list; NULL: any), $type (NULL: any), $confidence (suspected or
--     confirmed; NULL: any), $from (inclusive) and $to (exclusive) of a period in which they were open (NULL:
--     unbounded), $before_at and $before_id (detected_at and id of the last incident shown; NULL: first page),
--     $limit, $outlined (true: metadata holds only the members moved and rules; NULL: all members)
WITH latest AS (
    SELECT incident_id, max((revision, _offset)) AS version
    FROM log.incidents
    WHERE $project IS NULL OR project = $project
    GROUP BY incident_id
), page AS (
    -- Evidence is most of an incident's data, so read it only for the page.
    SELECT i.rowid AS row
    FROM log.incidents AS i
    JOIN latest AS l ON i.incident_id = l.incident_id AND (i.revision, i._offset) = version
    WHERE ($statuses::VARCHAR[] IS NULL OR list_contains($statuses::VARCHAR[], log.incident_status(status)))
        AND ($type IS NULL OR type = $type) AND ($confidence IS NULL OR confidence = $confidence)
        AND ($from IS NULL OR coalesce(resolved_at, TIMESTAMP '9999-12-31') >= $from::TIMESTAMP)
        AND ($to IS NULL OR coalesce(first_day, detected_at) < $to::TIMESTAMP)
        AND ($before_at IS NULL OR (detected_at, i.incident_id) < ($before_at::TIMESTAMP, $before_id::VARCHAR))
    ORDER BY detected_at DESC, i.incident_id DESC
    LIMIT $limit
)
SELECT
    i.* EXCLUDE (_topic, _partition, _offset)
    REPLACE (
        log.incident_status(status) AS status, log.incident_resolution(status, resolution) AS resolution,
        log.incident_assignee(assignee, assigned_at, acknowledged_by) AS assignee,
        CASE WHEN $outlined::BOOLEAN THEN o.evidence ELSE metadata END AS metadata
    )
FROM log.incidents AS i
JOIN page AS p ON i.rowid = p.row
LEFT JOIN log.incident_outlines AS o ON i.incident_id = o.incident_id AND i.revision = o.version
ORDER BY detected_at DESC, i.incident_id DESC
