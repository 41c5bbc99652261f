-- purpose: an incident as it was first told of, which is what an alert said
-- grain: one row, its earliest revision that is kept; none where there is no such incident
-- parameters: $project, $incident (id)
SELECT title, severity, detected_at
FROM log.incidents
WHERE project = $project AND incident_id = $incident
ORDER BY revision, _offset
LIMIT 1
