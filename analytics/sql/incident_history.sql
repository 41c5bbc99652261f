-- purpose: the history of an incident: decisions, assignments, snoozes and comments
-- grain: one row per review, oldest first
-- parameters: $incident (id)
SELECT kind, reviewer, status, assignee, until, comment, occurred_at
FROM reviews
WHERE subject_id = $incident AND kind IN ('incident_decision', 'incident_assignment', 'incident_comment', 'incident_snooze')
ORDER BY occurred_at, review_id
