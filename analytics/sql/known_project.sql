-- purpose: whether any record of a project is stored. The query stops at the first record, so it is cheap enough for
--     every request
-- grain: one row if a record is stored, otherwise none
-- parameters: $project
SELECT project
FROM (
    -- The search ends at the first row, so small tables come first.
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
