-- purpose: all revisions of the score of one exchange, the current one first
-- grain: one row per revision, with the columns of its record
-- parameters: $project, $score (its id), $at (event time of the exchange, to find it quickly; NULL: unknown)
SELECT * EXCLUDE (_topic, _partition, _offset)
FROM log.scores
WHERE project = $project AND score_id = $score AND ($at IS NULL OR exchange_at = $at::TIMESTAMP)
QUALIFY row_number() OVER (PARTITION BY revision ORDER BY _offset DESC) = 1
ORDER BY revision DESC
