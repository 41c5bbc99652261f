-- purpose: to whom people assigned incidents, and which assignment an incident does not show yet
-- grain: one row per assignment, oldest first; status: none, as decisions have one; pending: it is the newest of its incident, and the incident's latest revision knows nothing of it
-- parameters: $projects (list, NULL for all), $incident (NULL for all)
WITH assignments AS (
    SELECT
        review_id, project, subject_id AS incident_id, reviewer, status, assignee, comment, occurred_at,
        row_number() OVER (PARTITION BY subject_id ORDER BY occurred_at DESC, review_id DESC) = 1 AS is_newest
    FROM reviews
    WHERE kind = 'incident_assignment' AND ($projects::VARCHAR[] IS NULL OR list_contains($projects::VARCHAR[], project))
        AND ($incident IS NULL OR subject_id = $incident)
)
SELECT
    a.* EXCLUDE (is_newest),
    -- A decision can also assign, so a later change of the assignee means that an earlier one is already applied.
    a.is_newest AND (i.assigned_at IS NULL OR i.assigned_at < a.occurred_at) AS pending
FROM assignments AS a
JOIN incidents AS i USING (incident_id)
ORDER BY a.occurred_at, a.review_id
