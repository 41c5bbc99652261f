-- purpose: what was said of one exchange over time: every revision of its score, the current one first
-- grain: one row per revision, with the columns of its record
-- parameters: $project, $score (id of the score), $at (time of the exchange, which makes it quick to find; NULL: not known)
SELECT * EXCLUDE (_topic, _partition, _offset)
FROM log.scores
WHERE project = $project AND score_id = $score AND ($at IS NULL OR exchange_at = $at::TIMESTAMP)
QUALIFY row_number() OVER (PARTITION BY revision ORDER BY _offset DESC) = 1
ORDER BY revision DESC
