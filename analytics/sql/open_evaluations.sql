-- purpose: requested evaluations without a result
-- grain: one row per request, in the order of the topic
-- parameters: $position (next offset of the stage; earlier requests are done or set aside)
SELECT r.evaluation_id
FROM log.evaluation_requests AS r
ANTI JOIN log.evaluations AS e ON e.evaluation_id = r.evaluation_id AND e.revision >= r.attempt
ANTI JOIN log.dead_letters AS d
    ON d.stage IN ('evaluation', 'decoding') AND d.source = 'evaluation-requests' AND d.position = r._offset
    AND coalesce(d.partition, r._partition) = r._partition
WHERE r._offset >= $position
ORDER BY r._offset, r.evaluation_id
