-- purpose: what could not be taken, by reason
-- grain: one row a source and reason
-- parameters: none
SELECT source, stage, reason, count(*) AS records, min(position) AS first_position, any_value(detail ORDER BY position) AS example
FROM dead_letters
GROUP BY ALL
ORDER BY records DESC, source, reason
