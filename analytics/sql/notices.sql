-- purpose: what changed in the traffic of each project according to its newest check: the shares of its agents, and
--     agents that are new. None of it says anything about quality
-- grain: one row per project and notice, the largest change first
-- parameters: $project (NULL: all)
SELECT
    project,
    checked_at,
    unnest(notices, recursive := true)
FROM log.project_checks
WHERE $project IS NULL OR project = $project
ORDER BY project
