-- purpose: the runs of a project with their verdicts, filtered, sorted and paged
-- grain: one row per run (a finalized session). last_at: the end of the run, or its closing if the end is unknown;
--     version: the last label agent_version of its exchanges and events within a week, NULL without one; sort_number, sort_text, sort_id: sort keys
-- parameters: $project, $since (inclusive) and $until (exclusive) of last_at (NULL: unbounded), $readiness (NULL:
--     any), $agents (list, '' for unnamed; NULL: any), $failure (primary failure, '' for none; NULL: any), $least and
--     $most (inclusive bounds of trust; NULL: unbounded), $sort (at, run, trust, trust_score, failure, agent,
--     session, calls or events; trust sorts by readiness, then by trust), $down (true: descending), $last_number,
--     $last_text, $last_id (sort keys of the last row already listed; NULL: first page), $limit
WITH filtered AS (
    SELECT
        n.number, d.connection, d.session_id, d.agent, d.started_at, coalesce(d.ended_at, d.closed_at) AS last_at, d.readiness_level, d.trust_score,
        d.primary_failure_type, d.primary_severity, d.event_counts, d.event_count,
        CASE $sort
            WHEN 'at' THEN epoch_us(last_at)::DOUBLE WHEN 'run' THEN number::DOUBLE WHEN 'trust_score' THEN d.trust_score::DOUBLE
            WHEN 'trust' THEN
                coalesce(list_position(['unsafe_for_production', 'review_recommended', 'ready_for_runtime'], d.readiness_level), 4) * 1000
                + coalesce(d.trust_score, 999)
            WHEN 'calls' THEN coalesce(list_sum([c.count FOR c IN d.event_counts IF c.event = 'tool_call']), 0)::DOUBLE
            WHEN 'events' THEN d.event_count::DOUBLE
        END AS sort_number,
        CASE $sort WHEN 'failure' THEN d.primary_failure_type WHEN 'agent' THEN d.agent WHEN 'session' THEN d.session_id END AS sort_text,
        -- Break ties by the last finished run.
        999999999999999999 - number AS tiebreak
    FROM log.run_diagnoses($project) AS d
    JOIN log.run_numbers AS n ON n.connection = d.connection AND n.session_id = d.session_id AND n.project = $project
    WHERE ($since IS NULL OR last_at >= $since::TIMESTAMP) AND ($until IS NULL OR last_at < $until::TIMESTAMP)
        AND ($readiness IS NULL OR d.readiness_level = $readiness)
        AND ($agents::VARCHAR[] IS NULL OR list_contains($agents::VARCHAR[], coalesce(d.agent, '')))
        AND ($failure IS NULL OR coalesce(d.primary_failure_type, '') = $failure)
        AND ($least IS NULL OR d.trust_score >= $least) AND ($most IS NULL OR d.trust_score <= $most)
), page AS MATERIALIZED (
    SELECT *
    FROM filtered
    WHERE log.listed_after($down, sort_number, sort_text, printf('%018d', tiebreak), $last_number, $last_text, $last_id)
    ORDER BY
        sort_number IS NULL AND sort_text IS NULL, CASE WHEN $down THEN -sort_number ELSE sort_number END,
        CASE WHEN NOT $down THEN sort_text END, CASE WHEN $down THEN sort_text END DESC, tiebreak
    LIMIT $limit
), period AS (
    SELECT min(coalesce(started_at, last_at - INTERVAL 7 DAY)) AS first_at, max(last_at) AS last_at FROM page
), labels AS (
    SELECT e.connection, e.session_id, e.occurred_at, e.labels
    FROM log.exchanges AS e
    SEMI JOIN page USING (connection, session_id)
    WHERE project = $project AND occurred_at >= (SELECT first_at FROM period) AND occurred_at <= (SELECT last_at FROM period)
    UNION ALL
    SELECT e.connection, e.session_id, e.occurred_at, e.labels
    FROM log.agent_events AS e
    SEMI JOIN page USING (connection, session_id)
    WHERE project = $project AND occurred_at >= (SELECT first_at FROM period) AND occurred_at <= (SELECT last_at FROM period)
), versions AS (
    SELECT connection, session_id, arg_max(label.value, occurred_at) AS version
    FROM (SELECT connection, session_id, occurred_at, unnest(labels) AS label FROM labels)
    WHERE label.name = 'agent_version'
    GROUP BY connection, session_id
)
SELECT
    printf('run_%03d', number) AS run_id, agent, version, connection, session_id, last_at, readiness_level, trust_score, primary_failure_type,
    primary_severity, coalesce(list_sum([c.count FOR c IN event_counts IF c.event = 'tool_call']), 0)::BIGINT AS tool_calls, event_count,
    sort_number, sort_text, printf('%018d', tiebreak) AS sort_id
FROM page
LEFT JOIN versions USING (connection, session_id)
ORDER BY
    sort_number IS NULL AND sort_text IS NULL, CASE WHEN $down THEN -sort_number ELSE sort_number END,
    CASE WHEN NOT $down THEN sort_text END, CASE WHEN $down THEN sort_text END DESC, tiebreak
