-- purpose: one incident, found by its id or by the beginning of it
-- grain: one row per incident in its latest revision, with the columns of its record
-- parameters: $project (NULL for all), $incident (id, or how it begins)
SELECT *
FROM incidents
WHERE starts_with(incident_id, $incident) AND ($project IS NULL OR project = $project)
ORDER BY incident_id
