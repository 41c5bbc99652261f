-- purpose: open dead letters (not retried), counted by stage and reason
-- grain: one row per stage and reason, the most frequent first
-- parameters: $stage, $reason, $source (NULL: all), $since (inclusive) and $until (exclusive) of the rejection
--     (NULL: unbounded)
SELECT stage, reason, count(*) AS letters, min(rejected_at) AS first_at, max(rejected_at) AS last_at
FROM dead_letters AS d
WHERE ($stage IS NULL OR stage = $stage) AND ($reason IS NULL OR reason = $reason) AND ($source IS NULL OR source = $source)
    AND ($since IS NULL OR rejected_at >= $since::TIMESTAMP) AND ($until IS NULL OR rejected_at < $until::TIMESTAMP)
    AND NOT EXISTS (FROM reviews WHERE kind = 'dead_letter' AND status = 'retried' AND subject_id = d.dead_letter_id)
GROUP BY stage, reason
ORDER BY letters DESC, stage, reason
