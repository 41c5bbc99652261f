-- purpose: an incident by its id or by a prefix of the id
-- grain: one row per incident in its latest revision, with the columns of its record
-- parameters: $project (NULL: all), $incident (id or prefix)
SELECT *
FROM incidents
WHERE starts_with(incident_id, $incident) AND ($project IS NULL OR project = $project)
ORDER BY incident_id
