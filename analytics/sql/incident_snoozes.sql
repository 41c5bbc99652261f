-- purpose: the snoozes of incidents, and which of them are not yet applied
-- grain: one row per snooze, oldest first. until: its end, NULL until the incident gets worse; pending: the newest
--     snooze of its incident, not yet in the incident's latest revision
-- parameters: $projects (list; NULL: all), $incident (NULL: all)
WITH snoozes AS (
    SELECT
        review_id, project, subject_id AS incident_id, reviewer, until, comment, occurred_at,
        row_number() OVER (PARTITION BY subject_id ORDER BY occurred_at DESC, review_id DESC) = 1 AS is_newest
    FROM reviews
    WHERE kind = 'incident_snooze' AND ($projects::VARCHAR[] IS NULL OR list_contains($projects::VARCHAR[], project))
        AND ($incident IS NULL OR subject_id = $incident)
)
SELECT
    s.* EXCLUDE (is_newest),
    -- A decision ends a snooze, so a later one means that this snooze was applied or is void.
    s.is_newest AND coalesce(greatest(i.snoozed_at, i.woken_at, i.decided_at) < s.occurred_at, true) AS pending
FROM snoozes AS s
JOIN incidents AS i USING (incident_id)
ORDER BY s.occurred_at, s.review_id
