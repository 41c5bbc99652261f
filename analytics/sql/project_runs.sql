-- purpose: a page of a project's runs with their verdicts, the latest end first
-- grain: one row per run (a finalized session). exchanges_only: it has no runtime events and so no trust score;
--     last_at: the end of the run, or its closing if the end is unknown; run_id: numbered within a project in the
--     order of finishing
-- parameters: $project, $before_at and $before (last_at and number of the last run shown; NULL: first page),
--     $readiness (NULL: all), $from (inclusive) and $to (exclusive) of the end of the run (NULL: unbounded), $limit
WITH edge AS (
    -- Find the end of the page by times alone, so that numbers are looked up only for its runs.
    SELECT CASE WHEN count(*) = $limit THEN min(last_at) ELSE TIMESTAMP '-infinity' END AS first_at
    FROM (
        SELECT coalesce(ended_at, closed_at) AS last_at
        FROM log.run_diagnoses($project)
        WHERE ($readiness IS NULL OR readiness_level = $readiness)
            AND ($from IS NULL OR last_at >= $from::TIMESTAMP) AND ($to IS NULL OR last_at < $to::TIMESTAMP)
            AND ($before IS NULL OR last_at < $before_at::TIMESTAMP)
        ORDER BY last_at DESC
        LIMIT $limit
    )
), page AS (
    SELECT n.number, d.*, coalesce(d.ended_at, d.closed_at) AS last_at
    FROM log.run_diagnoses($project) AS d
    JOIN edge ON coalesce(d.ended_at, d.closed_at) >= edge.first_at
    JOIN log.run_numbers AS n ON n.connection = d.connection AND n.session_id = d.session_id AND n.project = $project
    WHERE ($readiness IS NULL OR d.readiness_level = $readiness)
        AND ($from IS NULL OR last_at >= $from::TIMESTAMP) AND ($to IS NULL OR last_at < $to::TIMESTAMP)
        AND ($before IS NULL OR (last_at, n.number) < ($before_at::TIMESTAMP, $before::BIGINT))
    ORDER BY last_at DESC, number DESC
    LIMIT $limit
)
SELECT
    number, printf('run_%03d', number) AS run_id, $project AS project, agent, connection, session_id, last_at, started_at, ended_at,
    closed_at, readiness_level, trust_score, primary_failure_type, primary_severity,
    coalesce(list_sum([c.count FOR c IN event_counts IF c.event = 'tool_call']), 0)::BIGINT AS tool_calls,
    event_count, event_count = 0 AS exchanges_only, threshold_profile, threshold_changes
FROM page
ORDER BY last_at DESC, number DESC
