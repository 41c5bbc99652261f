-- purpose: dead letters with their bytes, open or retried, by id or prefix of the id
-- grain: one row per dead letter, with the columns of its record. retried_at: NULL while it is open
-- parameters: $starts (list of ids or prefixes)
SELECT d.*, r.retried_at
FROM dead_letters AS d
LEFT JOIN (
    SELECT subject_id, min(occurred_at) AS retried_at
    FROM reviews
    WHERE kind = 'dead_letter' AND status = 'retried'
    GROUP BY subject_id
) AS r ON r.subject_id = d.dead_letter_id
WHERE EXISTS (FROM unnest($starts::VARCHAR[]) AS prefixes (start) WHERE starts_with(d.dead_letter_id, start))
ORDER BY d.rejected_at, d.dead_letter_id
