-- purpose: the assignments of incidents, and which of them are not yet applied
-- grain: one row per assignment, oldest first. status: the status that decisions share, NULL here; pending: the
--     newest assignment of its incident, not yet in the incident's latest revision
-- parameters: $projects (list; NULL: all), $incident (NULL: all)
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
    -- A decision can also assign, so a later assigned_at means that this assignment was applied.
    a.is_newest AND (i.assigned_at IS NULL OR i.assigned_at < a.occurred_at) AS pending
FROM assignments AS a
JOIN incidents AS i USING (incident_id)
ORDER BY a.occurred_at, a.review_id
