-- purpose: which scores of a project people have looked at and scored
-- grain: one row a score that has a human score
-- parameters: $project
SELECT DISTINCT subject_id AS score_id
FROM log.reviews
WHERE kind = 'human_score' AND score IS NOT NULL AND project = $project
ORDER BY score_id
