-- purpose: the deployments of a project
-- grain: one row per deployment, newest first
-- parameters: $project, $since (inclusive) and $until (exclusive) in event time, each NULL: unbounded, $limit
SELECT *
FROM deployments
WHERE project = $project AND ($since IS NULL OR occurred_at >= $since::TIMESTAMP) AND ($until IS NULL OR occurred_at < $until::TIMESTAMP)
ORDER BY occurred_at DESC, deployment_id
LIMIT $limit
