-- purpose: the dead letters that are open, that is, were not put back, the newest first, without their bytes
-- grain: one row per dead letter; kept is how many of its bytes are there
-- parameters: $stage, $reason, $source (NULL for all), $since (when they were set aside, inclusive; NULL: no bound), $limit
SELECT dead_letter_id, source, partition, position, stage, reason, detail, size, octet_length(body) AS kept, rejected_at
FROM dead_letters AS d
WHERE ($stage IS NULL OR stage = $stage) AND ($reason IS NULL OR reason = $reason) AND ($source IS NULL OR source = $source)
    AND ($since IS NULL OR rejected_at >= $since::TIMESTAMP)
    AND NOT EXISTS (FROM reviews WHERE kind = 'dead_letter' AND status = 'retried' AND subject_id = d.dead_letter_id)
ORDER BY rejected_at DESC, dead_letter_id
LIMIT $limit
