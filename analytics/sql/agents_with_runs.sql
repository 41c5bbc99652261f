-- purpose: the agents of a project that have runs with runtime events
-- grain: one row per agent. agent: NULL for runs without an agent
-- parameters: $project
SELECT agent FROM log.diagnoses WHERE project = $project AND event_count > 0 GROUP BY agent ORDER BY agent NULLS LAST
