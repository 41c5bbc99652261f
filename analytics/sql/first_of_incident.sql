-- purpose: the first revision of an incident, which its first alert described
-- grain: one row: the earliest revision still stored; none if the incident does not exist
-- parameters: $project, $incident (id)
SELECT title, severity, detected_at
FROM log.incidents
WHERE project = $project AND incident_id = $incident
ORDER BY revision, _offset
LIMIT 1
