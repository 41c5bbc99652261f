-- purpose: evaluations that were asked for and are not made yet
-- grain: one row a request, in the order of its topic
-- parameters: $position (where the stage reads next: what lies before was made, or set aside)
SELECT evaluation_id
FROM log.evaluation_requests AS r
WHERE r._offset >= $position
    AND NOT EXISTS (SELECT 1 FROM log.evaluations AS e WHERE e.evaluation_id = r.evaluation_id AND e.revision >= r.attempt)
ORDER BY r._offset, r.evaluation_id
