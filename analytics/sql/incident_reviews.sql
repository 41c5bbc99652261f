-- purpose: the decisions on incidents, their assignments and their snoozes, and which of them are not yet applied
-- grain: one row per review, oldest first; those of one time in the order in which they are applied. pending: the newest
--     review of its kind of its incident, not yet in the incident's latest revision
-- parameters: $projects (list; NULL: all), $incident (NULL: all)
WITH changes AS (
    SELECT
        review_id, project, subject_id AS incident_id, kind, reviewer, status, assignee, until, comment, occurred_at,
        row_number() OVER (PARTITION BY subject_id, kind ORDER BY occurred_at DESC, review_id DESC) = 1 AS is_newest
    FROM reviews
    WHERE kind IN ('incident_decision', 'incident_assignment', 'incident_snooze')
        AND ($projects::VARCHAR[] IS NULL OR list_contains($projects::VARCHAR[], project))
        AND ($incident IS NULL OR subject_id = $incident)
)
SELECT
    c.* EXCLUDE (is_newest),
    c.is_newest AND CASE
        -- A decision can also assign, so a later assigned_at means that this assignment was applied.
        WHEN c.kind = 'incident_assignment' THEN i.assigned_at IS NULL OR i.assigned_at < c.occurred_at
        -- A decision ends a snooze, so a later one means that this snooze was applied or is void.
        WHEN c.kind = 'incident_snooze' THEN coalesce(greatest(i.snoozed_at, i.woken_at, i.decided_at) < c.occurred_at, true)
        -- An incident can also resolve itself, so its state does not show which decision was applied.
        -- Records of older versions lack decided_at.
        WHEN i.decided_at IS NOT NULL THEN i.decided_at < c.occurred_at
        WHEN c.status = 'open' THEN i.status <> 'open'
        ELSE i.resolved_at IS DISTINCT FROM c.occurred_at END AS pending
FROM changes AS c
JOIN incidents AS i USING (incident_id)
ORDER BY c.occurred_at, list_position(['incident_decision', 'incident_assignment', 'incident_snooze'], c.kind), c.review_id
