-- purpose: a page of the runs of a project with their verdicts, the one that was finished last first
-- grain: one row a run, that is a finalized session; ids count up within a project
-- parameters: $project, $before (number of a run: only earlier ones; NULL: from the newest), $readiness (only runs of this level; NULL: all), $limit
SELECT
    n.number, printf('run_%03d', n.number) AS run_id, n.project, d.agent, n.connection, n.session_id, d.started_at, d.ended_at,
    d.closed_at, d.trust_score, d.readiness_level, d.primary_failure_type, d.primary_severity,
    coalesce(list_sum([c.count FOR c IN d.event_counts IF c.event = 'tool_call']), 0)::BIGINT AS tool_calls, d.event_count
FROM log.run_numbers AS n
JOIN diagnoses AS d USING (connection, session_id)
WHERE n.project = $project AND ($before IS NULL OR n.number < $before)
    AND ($readiness IS NULL OR d.readiness_level = $readiness)
ORDER BY n.number DESC
LIMIT $limit
