-- purpose: the people who score exchanges
-- grain: one row per reviewer, the most recent first. scores: all their scores, including replaced ones
-- parameters: none
SELECT
    reviewer, count(*) AS scores, count(DISTINCT subject_id) AS exchanges, list_sort(list(DISTINCT project)) AS projects,
    max(occurred_at) AS last_at
FROM log.reviews
WHERE kind = 'human_score' AND score IS NOT NULL
GROUP BY reviewer
ORDER BY last_at DESC, reviewer
LIMIT 200
