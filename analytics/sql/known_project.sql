-- purpose: whether anything is stored of a project; looked up, not counted, so that every call may ask
-- grain: one row if anything is stored, else none
-- parameters: $project
SELECT $project::VARCHAR AS project
WHERE
    EXISTS (FROM log.exchanges WHERE project = $project)
    OR EXISTS (FROM log.agent_events WHERE project = $project)
    OR EXISTS (FROM log.scores WHERE project = $project)
    OR EXISTS (FROM log.run_numbers WHERE project = $project)
    OR EXISTS (FROM log.incidents WHERE project = $project)
    OR EXISTS (FROM log.baselines WHERE project = $project)
    OR EXISTS (FROM log.evaluations WHERE project = $project)
    OR EXISTS (FROM log.heartbeats WHERE project = $project)
    OR EXISTS (FROM log.judgements WHERE project = $project)
    OR EXISTS (FROM log.evaluation_requests WHERE project = $project)
