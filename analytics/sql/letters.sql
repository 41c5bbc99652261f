-- purpose: open dead letters (not retried), newest first, without their bytes
-- grain: one row per dead letter. kept: number of stored bytes
-- parameters: $stage, $reason, $source (NULL: all), $since (inclusive) and $until (exclusive) of the rejection
--     (NULL: unbounded),
--     $limit
SELECT dead_letter_id, source, partition, position, stage, reason, detail, size, octet_length(body) AS kept, rejected_at
FROM dead_letters AS d
WHERE ($stage IS NULL OR stage = $stage) AND ($reason IS NULL OR reason = $reason) AND ($source IS NULL OR source = $source)
    AND ($since IS NULL OR rejected_at >= $since::TIMESTAMP) AND ($until IS NULL OR rejected_at < $until::TIMESTAMP)
    AND NOT EXISTS (FROM reviews WHERE kind = 'dead_letter' AND status = 'retried' AND subject_id = d.dead_letter_id)
ORDER BY rejected_at DESC, dead_letter_id
LIMIT $limit
