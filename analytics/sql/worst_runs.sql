-- purpose: a page of the runs of a project with their verdicts, the worst readiness first, of one level the lowest trust first, among equals the one that was finished last; also those of some agents in some time
-- grain: one row per run, that is a finalized session; exchanges_only: it has no runtime events, so no trust score; level: 0 unsafe for production, 1 review recommended, 2 ready for runtime, 3 without evidence, so without a trust score
-- parameters: $project, $readiness (only runs of this level; NULL: all), $agents (only runs of these; NULL: of all), $since (inclusive), $until (exclusive; when a run ended, or was closed if that is unknown; NULL: any time), $after_level, $after_trust and $after_number (only what comes after that run; -1 is no trust score; NULL: from the worst on), $limit
WITH page AS (
    SELECT
        n.number, d.*, coalesce(d.trust_score, 'infinity'::DOUBLE) AS place, coalesce(d.ended_at, d.closed_at) AS last_at,
        coalesce(list_position(['unsafe_for_production', 'review_recommended', 'ready_for_runtime'], d.readiness_level) - 1, 3)::INTEGER AS level
    FROM log.run_diagnoses($project) AS d
    JOIN log.run_numbers AS n ON n.connection = d.connection AND n.session_id = d.session_id AND n.project = $project
    WHERE ($readiness IS NULL OR d.readiness_level = $readiness)
        AND ($agents::VARCHAR[] IS NULL OR list_contains($agents::VARCHAR[], d.agent))
        AND ($since IS NULL OR last_at >= $since::TIMESTAMP) AND ($until IS NULL OR last_at < $until::TIMESTAMP)
        AND (
            $after_number IS NULL
            OR (level, place, -n.number) > (
                $after_level::INTEGER, coalesce(nullif($after_trust::DOUBLE, -1), 'infinity'::DOUBLE), -$after_number::BIGINT
            )
        )
    ORDER BY level, place, number DESC
    LIMIT $limit
)
SELECT
    number, printf('run_%03d', number) AS run_id, $project AS project, agent, connection, session_id, started_at, ended_at, closed_at,
    level, readiness_level, trust_score, primary_failure_type, primary_severity,
    coalesce(list_sum([c.count FOR c IN event_counts IF c.event = 'tool_call']), 0)::BIGINT AS tool_calls, event_count,
    event_count = 0 AS exchanges_only, threshold_profile, threshold_changes
FROM page
ORDER BY level, place, number DESC
