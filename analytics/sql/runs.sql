-- purpose: every run with its verdict, in the order in which the runs were finished
-- grain: one row per run, that is a finalized session; exchanges_only: it has no runtime events, so no trust score; ids count up within a project
-- parameters: $project (NULL for all), $since (only runs that ended then or later; NULL for all), $newest (only so many, those that ended last; NULL for all)
SELECT
    printf('run_%03d', n.number) AS run_id, n.project, d.agent, n.connection, n.session_id, d.started_at, d.ended_at,
    d.closed_at, d.trust_score, d.readiness_level, d.primary_failure_type, d.primary_severity,
    coalesce(list_sum([c.count FOR c IN d.event_counts IF c.event = 'tool_call']), 0)::BIGINT AS tool_calls, d.event_count, d.event_count = 0 AS exchanges_only,
    d.threshold_profile, d.threshold_changes
FROM log.run_numbers AS n
JOIN diagnoses AS d USING (connection, session_id)
WHERE ($project IS NULL OR n.project = $project) AND ($since IS NULL OR coalesce(d.ended_at, d.closed_at) >= $since::TIMESTAMP)
QUALIFY $newest IS NULL
    OR row_number() OVER (ORDER BY coalesce(d.ended_at, d.closed_at) DESC, n.project, n.number DESC) <= $newest::BIGINT
ORDER BY n.project, n.number
