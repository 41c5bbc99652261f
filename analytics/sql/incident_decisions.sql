-- purpose: the decisions on incidents, and which of them are not yet applied
-- grain: one row per decision, oldest first. pending: the newest decision on its incident, not yet in the incident's
--     latest revision
-- parameters: $projects (list; NULL: all), $incident (NULL: all)
WITH decisions AS (
    SELECT
        review_id, project, subject_id AS incident_id, reviewer, status, comment, occurred_at,
        row_number() OVER (PARTITION BY subject_id ORDER BY occurred_at DESC, review_id DESC) = 1 AS is_newest
    FROM reviews
    WHERE kind = 'incident_decision' AND ($projects::VARCHAR[] IS NULL OR list_contains($projects::VARCHAR[], project))
        AND ($incident IS NULL OR subject_id = $incident)
)
SELECT
    d.* EXCLUDE (is_newest),
    -- An incident can also resolve itself, so its state does not show which decision was applied.
    -- Records of older versions lack decided_at.
    d.is_newest AND CASE
        WHEN i.decided_at IS NOT NULL THEN i.decided_at < d.occurred_at
        WHEN d.status = 'open' THEN i.status <> 'open'
        ELSE i.resolved_at IS DISTINCT FROM d.occurred_at END AS pending
FROM decisions AS d
JOIN incidents AS i USING (incident_id)
ORDER BY d.occurred_at, d.review_id
