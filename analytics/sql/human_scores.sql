-- purpose: what people said of one exchange, with everything they said before, newest first
-- grain: one row per human score; counts: whether it is the newest of its rater
-- parameters: $project, $score (id of the judge's score)
SELECT
    review_id, reviewer AS rater, score, comment, occurred_at AS scored_at,
    row_number() OVER (PARTITION BY reviewer ORDER BY occurred_at DESC, _offset DESC) = 1 AS counts
FROM log.reviews
WHERE kind = 'human_score' AND score IS NOT NULL AND project = $project AND subject_id = $score
ORDER BY occurred_at DESC, _offset DESC
