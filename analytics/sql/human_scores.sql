-- purpose: all human scores of one exchange, newest first
-- grain: one row per human score. queue: the review queue in which it was given, NULL for none; counts: whether it is its rater's newest
-- parameters: $project, $score (id of the judge's score)
SELECT
    review_id, reviewer AS rater, score, comment, queue, dimensions, occurred_at AS scored_at,
    row_number() OVER (PARTITION BY reviewer ORDER BY occurred_at DESC, _offset DESC) = 1 AS counts
FROM log.reviews
WHERE kind = 'human_score' AND score IS NOT NULL AND project = $project AND subject_id = $score
ORDER BY occurred_at DESC, _offset DESC
