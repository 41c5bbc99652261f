-- purpose: the current score with a given id, with its newest human score and the time of its first revision
-- grain: one row at most: every column of the score, created_at, human_score, human_comment, human_scored_at
-- parameters: $project, $score (its id), $at (event time of the exchange, to find it quickly; NULL: unknown)
WITH versions AS (
    SELECT *, min_by(scored_at, (revision, _offset)) OVER () AS created_at
    FROM log.scores
    WHERE project = $project AND score_id = $score AND ($at IS NULL OR exchange_at = $at::TIMESTAMP)
), newest_review AS (
    SELECT score AS human_score, comment AS human_comment, occurred_at AS human_scored_at
    FROM log.reviews
    WHERE kind = 'human_score' AND score IS NOT NULL AND subject_id = $score
    ORDER BY occurred_at DESC, _offset DESC
    LIMIT 1
)
SELECT v.* EXCLUDE (_topic, _partition, _offset), r.human_score, r.human_comment, r.human_scored_at
FROM versions AS v
LEFT JOIN newest_review AS r ON true
ORDER BY v.revision DESC, v._offset DESC
LIMIT 1
