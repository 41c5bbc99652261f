-- purpose: all runs with their verdicts, in the order of finishing
-- grain: one row per run (a finalized session). exchanges_only: it has no runtime events and so no trust score;
--     run_id: numbered within a project
-- parameters: $project (NULL: all), $since (inclusive) and $until (exclusive) of the end of the run (NULL: unbounded),
--     $agent ('' for unnamed; NULL: any), $failure (primary failure, '' for none; NULL: any), $tool (only sessions with
--     a call of this tool; NULL: any), $version (of the agent in an exchange, in its label; NULL: any), $tool_error (true:
--     only with an exchange with a failed call, of that tool if any; NULL: any), $newest (only this many runs, the latest ends; NULL: all)
SELECT
    printf('run_%03d', n.number) AS run_id, n.project, d.agent, n.connection, n.session_id, d.started_at, d.ended_at,
    d.closed_at, d.trust_score, d.readiness_level, d.primary_failure_type, d.primary_severity,
    coalesce(list_sum([c.count FOR c IN d.event_counts IF c.event = 'tool_call']), 0)::BIGINT AS tool_calls, d.event_count,
    d.event_count = 0 AS exchanges_only,
    d.threshold_profile, d.threshold_changes
FROM log.run_numbers AS n
JOIN diagnoses AS d USING (connection, session_id)
WHERE ($project IS NULL OR n.project = $project) AND ($since IS NULL OR coalesce(d.ended_at, d.closed_at) >= $since::TIMESTAMP)
    AND ($until IS NULL OR coalesce(d.ended_at, d.closed_at) < $until::TIMESTAMP)
    AND ($agent IS NULL OR coalesce(d.agent, '') = $agent) AND ($failure IS NULL OR coalesce(d.primary_failure_type, '') = $failure)
    AND ($tool IS NULL OR (n.connection, n.session_id) IN (
        SELECT (connection, session_id)
        FROM log.agent_events
        WHERE event = 'tool_call' AND tool = $tool AND ($project IS NULL OR project = $project)
        UNION ALL
        SELECT (connection, session_id)
        FROM log.exchanges
        WHERE list_contains([c.name FOR c IN tool_calls], $tool) AND ($project IS NULL OR project = $project)
    ))
    AND (
        NOT log.is_tagged(NULL, NULL, NULL, $version, NULL, $tool_error::BOOLEAN, NULL)
        OR (n.connection, n.session_id) IN (
            SELECT (connection, session_id)
            FROM log.tagged_exchanges(
                $project, NULL, NULL, NULL, NULL, NULL, $version, CASE WHEN $tool_error THEN $tool END, $tool_error::BOOLEAN, NULL, NULL
            )
        )
    )
QUALIFY $newest IS NULL
    OR row_number() OVER (ORDER BY coalesce(d.ended_at, d.closed_at) DESC, n.project, n.number DESC) <= $newest::BIGINT
ORDER BY n.project, n.number
