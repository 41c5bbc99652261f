-- purpose: the incidents of some projects, each in its latest revision
-- grain: one row an incident, with the columns of its record, oldest first
-- parameters: $projects (list)
SELECT *
FROM incidents
WHERE list_contains($projects::VARCHAR[], project)
ORDER BY project, detected_at, incident_id
