-- purpose: where the next span stands on each partition of its topic
-- grain: one row per partition
-- parameters: none
SELECT
    _partition AS part,
    max(_offset) + 1 AS next_position
FROM log.spans
GROUP BY _partition
ORDER BY part
