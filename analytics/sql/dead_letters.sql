-- purpose: what could not be taken, by reason, with the first of each as an example
-- grain: one row a source, stage and reason
-- parameters: none
SELECT
    source, stage, reason, count(*) AS records, min(position) AS first_position,
    first(detail ORDER BY position, dead_letter_id) AS example
FROM dead_letters
GROUP BY ALL
ORDER BY records DESC, source, stage, reason
