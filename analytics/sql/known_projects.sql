-- purpose: the names of all projects with stored records
-- grain: one row per project, except anchor projects
-- parameters: none
SELECT DISTINCT project
FROM (
    -- The stored sums cover the projects of all scores and exchanges except new ones.
    SELECT project FROM log.daily_scores
    UNION ALL SELECT project FROM log.changed_scores()
    UNION ALL SELECT project FROM log.daily_exchanges
    UNION ALL SELECT project FROM log.changed_exchanges()
    UNION ALL SELECT DISTINCT project FROM log.agent_events
    UNION ALL SELECT DISTINCT project FROM log.run_numbers
    UNION ALL SELECT DISTINCT project FROM log.incidents
    UNION ALL SELECT DISTINCT project FROM log.baselines
    UNION ALL SELECT DISTINCT project FROM log.evaluations
    UNION ALL SELECT DISTINCT project FROM log.evaluation_requests
    UNION ALL SELECT DISTINCT project FROM log.heartbeats
    UNION ALL SELECT DISTINCT project FROM log.judgements
)
WHERE log.matches_project(project, NULL)
ORDER BY project
