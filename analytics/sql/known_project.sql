-- purpose: whether anything is stored of a project; looked up, not counted, so that every call may ask
-- grain: one row if anything is stored, else none
-- parameters: $project
SELECT project
FROM (
    -- The first row ends the search, so small tables come first.
    SELECT project FROM log.daily_scores WHERE project = $project
    UNION ALL SELECT project FROM log.run_numbers WHERE project = $project
    UNION ALL SELECT project FROM log.incidents WHERE project = $project
    UNION ALL SELECT project FROM log.baselines WHERE project = $project
    UNION ALL SELECT project FROM log.evaluations WHERE project = $project
    UNION ALL SELECT project FROM log.evaluation_requests WHERE project = $project
    UNION ALL SELECT project FROM log.heartbeats WHERE project = $project
    UNION ALL SELECT project FROM log.agent_events WHERE project = $project
    UNION ALL SELECT project FROM log.judgements WHERE project = $project
    UNION ALL SELECT project FROM log.exchanges WHERE project = $project
    UNION ALL SELECT project FROM log.scores WHERE project = $project
)
LIMIT 1
