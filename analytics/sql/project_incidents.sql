-- purpose: the incidents of a project, newest first, a page at a time
-- grain: one row an incident in its latest revision, with the columns of its record
-- parameters: $project (NULL for all), $status, $type (NULL: any), $before_at and $before_id (detected_at and id of the last one that was shown; NULL for the first page), $limit
SELECT *
FROM incidents
WHERE ($project IS NULL OR project = $project) AND ($status IS NULL OR status = $status) AND ($type IS NULL OR type = $type)
    AND ($before_at IS NULL OR (detected_at, incident_id) < ($before_at::TIMESTAMP, $before_id::VARCHAR))
ORDER BY detected_at DESC, incident_id DESC
LIMIT $limit
