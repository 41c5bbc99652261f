-- purpose: evaluations that were asked for and are not made yet
-- grain: one row per request, in the order of its topic
-- parameters: $position (where the stage reads next: what lies before was made, or set aside)
SELECT r.evaluation_id
FROM log.evaluation_requests AS r
ANTI JOIN log.evaluations AS e ON e.evaluation_id = r.evaluation_id AND e.revision >= r.attempt
ANTI JOIN log.dead_letters AS d
    ON d.stage IN ('evaluation', 'decoding') AND d.source = 'evaluation-requests' AND d.position = r._offset
    AND coalesce(d.partition, r._partition) = r._partition
WHERE r._offset >= $position
ORDER BY r._offset, r.evaluation_id
