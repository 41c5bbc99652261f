-- purpose: the agents of a project that have runs
-- grain: one row an agent; agent is NULL for runs without one
-- parameters: $project
SELECT agent FROM log.diagnoses WHERE project = $project GROUP BY agent ORDER BY agent NULLS LAST
