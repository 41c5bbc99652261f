-- purpose: the scores of a project that people, or one rater, have scored themselves
-- grain: one row per score with a human score
-- parameters: $project, $rater (NULL: anyone)
SELECT DISTINCT subject_id AS score_id
FROM log.reviews
WHERE kind = 'human_score' AND score IS NOT NULL AND project = $project AND ($rater IS NULL OR reviewer = $rater)
ORDER BY score_id
