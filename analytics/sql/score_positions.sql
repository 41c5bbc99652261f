-- purpose: the next position of the scores, for clients that follow them
-- grain: one row per partition with scores
-- parameters: none
SELECT _partition AS partition, max(_offset) + 1 AS next_position
FROM log.scores
WHERE _partition >= 0
GROUP BY _partition
ORDER BY _partition
