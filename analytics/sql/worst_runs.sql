-- purpose: a page of a project's runs with their verdicts, by readiness (worst first), then by trust (lowest first),
--     then the last finished first
-- grain: one row per run (a finalized session). exchanges_only: it has no runtime events and so no trust score;
--     level: 0 unsafe for production, 1 review recommended, 2 ready for runtime, 3 without evidence
-- parameters: $project, $readiness (NULL: all), $agents (list; NULL: all), $since (inclusive), $until (exclusive; by
--     the end of the run, or its closing if the end is unknown; NULL: unbounded), $after_level, $after_trust and
--     $after_number (sort keys of the last run shown, with -1 for no trust score; NULL: first page), $limit
WITH page AS (
    SELECT
        n.number, d.*, coalesce(d.trust_score, 'infinity'::DOUBLE) AS trust_rank, coalesce(d.ended_at, d.closed_at) AS last_at,
        coalesce(list_position(['unsafe_for_production', 'review_recommended', 'ready_for_runtime'], d.readiness_level) - 1,
            3)::INTEGER AS level
    FROM log.run_diagnoses($project) AS d
    JOIN log.run_numbers AS n ON n.connection = d.connection AND n.session_id = d.session_id AND n.project = $project
    WHERE ($readiness IS NULL OR d.readiness_level = $readiness)
        AND ($agents::VARCHAR[] IS NULL OR list_contains($agents::VARCHAR[], d.agent))
        AND ($since IS NULL OR last_at >= $since::TIMESTAMP) AND ($until IS NULL OR last_at < $until::TIMESTAMP)
        AND (
            $after_number IS NULL
            OR (level, trust_rank, -n.number) > (
                $after_level::INTEGER, coalesce(nullif($after_trust::DOUBLE, -1), 'infinity'::DOUBLE), -$after_number::BIGINT
            )
        )
    ORDER BY level, trust_rank, number DESC
    LIMIT $limit
)
SELECT
    number, printf('run_%03d', number) AS run_id, $project AS project, agent, connection, session_id, started_at, ended_at, closed_at,
    level, readiness_level, trust_score, primary_failure_type, primary_severity,
    coalesce(list_sum([c.count FOR c IN event_counts IF c.event = 'tool_call']), 0)::BIGINT AS tool_calls, event_count,
    event_count = 0 AS exchanges_only, threshold_profile, threshold_changes
FROM page
ORDER BY level, trust_rank, number DESC
