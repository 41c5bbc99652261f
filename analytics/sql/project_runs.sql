-- purpose: a page of the runs of a project with their verdicts, the one that ended last first
-- grain: one row per run, that is a finalized session; exchanges_only: it has no runtime events, so no trust score; last_at: when it ended, or was closed if that is unknown; ids count up within a project in the order in which runs were finished
-- parameters: $project, $before_at and $before (last_at and number of a run: only those before it; NULL: from the newest), $readiness (only runs of this level; NULL: all), $from (inclusive) and $to (exclusive) of when a run ended (NULL: no bound), $limit
WITH edge AS (
    -- The end of a page is found by times alone, so numbers are looked up only for the page's runs.
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
