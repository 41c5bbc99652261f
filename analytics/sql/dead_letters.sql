-- purpose: dead letters that have not been retried, by reason, with the first of each as an example
-- grain: one row per source, stage and reason
-- parameters: none
SELECT
    source, stage, reason, count(*) AS records, min(position) AS first_position,
    first(detail ORDER BY position, dead_letter_id) AS example
FROM dead_letters AS d
WHERE NOT EXISTS (FROM reviews WHERE kind = 'dead_letter' AND status = 'retried' AND subject_id = d.dead_letter_id)
GROUP BY ALL
ORDER BY records DESC, source, stage, reason
