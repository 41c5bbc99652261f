-- purpose: the annotations of a project: the times and ranges that people marked on its charts
-- grain: one row per annotation that was not deleted, as it was last changed, newest first. author: who made it;
--     changed_by: who changed it last, at changed_at
-- parameters: $project, $id (of one annotation; NULL: all), $since (inclusive) and $until (exclusive) of the marked
--     time, where ranges need only overlap, each NULL: unbounded, $limit
WITH current AS (
    SELECT
        project, subject_id AS annotation_id, arg_min(reviewer, (occurred_at, _offset)) AS author,
        arg_max(reviewer, (occurred_at, _offset)) AS changed_by, max(occurred_at) AS changed_at,
        arg_max_null(status, (occurred_at, _offset)) AS status, arg_max_null(comment, (occurred_at, _offset)) AS text,
        arg_max_null(marked_from, (occurred_at, _offset)) AS marked_from,
        arg_max_null(marked_until, (occurred_at, _offset)) AS marked_until
    FROM log.reviews
    WHERE project = $project AND kind = 'annotation' AND ($id::VARCHAR IS NULL OR subject_id = $id::VARCHAR)
    GROUP BY project, subject_id
)
SELECT * EXCLUDE (status)
FROM current
WHERE status IS NULL AND ($since IS NULL OR coalesce(marked_until, marked_from) >= $since::TIMESTAMP)
    AND ($until IS NULL OR marked_from < $until::TIMESTAMP)
ORDER BY marked_from DESC, annotation_id
LIMIT $limit
