-- purpose: dead letters whole, open or not, found by their ids or by what these start with
-- grain: one row per dead letter: its record, and when it was put back (NULL for an open one)
-- parameters: $starts (a list)
SELECT d.*, r.retried_at
FROM dead_letters AS d
LEFT JOIN (
    SELECT subject_id, min(occurred_at) AS retried_at
    FROM reviews
    WHERE kind = 'dead_letter' AND status = 'retried'
    GROUP BY subject_id
) AS r ON r.subject_id = d.dead_letter_id
WHERE EXISTS (FROM unnest($starts::VARCHAR[]) AS wanted (start) WHERE starts_with(d.dead_letter_id, start))
ORDER BY d.rejected_at, d.dead_letter_id
