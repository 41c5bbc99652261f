-- purpose: what the newest check of each project could not compare, and why
-- grain: one row per project and blind spot, the most important first
-- parameters: $project (NULL: all)
SELECT
    project,
    checked_at,
    unnest(blind_spots, recursive := true)
FROM log.project_checks
WHERE $project IS NULL OR project = $project
ORDER BY project
