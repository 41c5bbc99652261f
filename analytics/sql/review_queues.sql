-- purpose: the open review queues of a project, by name
-- grain: one row per queue. settings: JSON of its newest definition; defined_by, defined_at: who made that, and when;
--     created_at: time of the first definition
-- parameters: $project
SELECT
    subject_id AS name, arg_max(settings, (occurred_at, _offset)) AS settings,
    arg_max(reviewer, (occurred_at, _offset)) AS defined_by, max(occurred_at) AS defined_at, min(occurred_at) AS created_at
FROM log.reviews
WHERE kind = 'review_queue' AND project = $project
GROUP BY subject_id
HAVING arg_max(status, (occurred_at, _offset)) = 'open'
ORDER BY name
