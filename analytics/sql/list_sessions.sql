-- purpose: the sessions of a project, or of all, with the scores of their exchanges, their events and their runs,
--     filtered, sorted and paged
-- grain: one row per session with a scored exchange or an event in the period. Counts, means and costs cover the
--     period; question: an excerpt of the session's first question, NULL without one; sort_number, sort_text,
--     sort_id: sort keys
-- parameters: $project (NULL: all), $since (inclusive) and $until (exclusive) of the time of exchanges and events,
--     $agent ('' for unnamed; NULL: any), $anomalies (true: only with an anomaly, false: only without; NULL: any), $failure (primary
--     failure of the run, '' for a run without one; NULL: any), $readiness (of the run; NULL: any), $version (of the
--     agent in an exchange, in its label; NULL: any), $tool (called in an exchange; NULL: any), $tool_error (true: only
--     with an exchange with a failed call, of that tool if any; NULL: any), $turns (fewest exchanges in the period;
--     NULL: any), $ids (list of `connection/session`; NULL: any), $tier (tier1, tier2, tier2_5 or tier3), $least and $most (inclusive bounds of the mean of this tier; NULL: unbounded), $sort
--     (at, session, agent, turns, events, anomalies, tier1, tier2, tier2_5, tier3, cost, readiness or trust), $down
--     (true: descending), $last_number, $last_text, $last_id (sort keys of the last row already listed; NULL: first
--     page), $limit
WITH tagged AS MATERIALIZED (
    SELECT DISTINCT connection, session_id
    FROM log.tagged_exchanges(
        $project, $since::TIMESTAMP, $until::TIMESTAMP, NULL, NULL, NULL, $version, $tool, $tool_error::BOOLEAN, NULL, NULL
    )
), session_days AS MATERIALIZED (
    SELECT * FROM log.session_days($project, $since::TIMESTAMP, $until::TIMESTAMP) WHERE log.matches_project(project, $project)
), bound AS (
    -- Without filters, the first page of the newest sessions starts no earlier than the last day with enough sessions.
    SELECT
        coalesce(
            max(day) FILTER (
                sessions >= $limit AND $sort = 'at' AND $down AND $last_id IS NULL AND $agent IS NULL AND $anomalies IS NULL
                AND $failure IS NULL AND $readiness IS NULL AND $least IS NULL AND $most IS NULL
                AND $version IS NULL AND $tool IS NULL AND $tool_error IS NULL AND $turns IS NULL AND $ids::VARCHAR[] IS NULL
            ),
            $since::TIMESTAMP
        ) AS earliest
    FROM (SELECT day, count(*) AS sessions FROM session_days GROUP BY day)
), recent_sessions AS MATERIALIZED (
    SELECT connection, session_id
    FROM (
        SELECT connection, session_id, agent FROM session_days JOIN bound ON last_at >= earliest
        UNION
        SELECT connection, session_id, agent
        FROM log.agent_events JOIN bound ON occurred_at >= earliest AND occurred_at >= $since::TIMESTAMP AND occurred_at < $until::TIMESTAMP
        WHERE log.matches_project(project, $project)
    )
    -- Few sessions match these filters, so no others are summed up.
    WHERE (coalesce($agent, '') = '' OR agent = $agent)
        AND ($version IS NULL AND $tool IS NULL AND $tool_error IS NULL OR (connection, session_id) IN (FROM tagged))
        AND ($ids::VARCHAR[] IS NULL OR list_contains($ids::VARCHAR[], connection || '/' || session_id))
    GROUP BY connection, session_id
), score_sums AS (
    SELECT
        project, connection, session_id, min(first_at) AS first_at, max(last_at) AS last_at, max(agent) AS agent, sum(exchanges)::BIGINT AS turns,
        sum(anomalies)::BIGINT AS anomalies, log.mean_of(sum(tier1_count), sum(tier1_sum)) AS tier1,
        log.mean_of(sum(tier2_count), sum(tier2_sum)) AS tier2, log.mean_of(sum(tier2_5_count), sum(tier2_5_sum)) AS tier2_5,
        log.mean_of(sum(tier3_count), sum(tier3_sum)) AS tier3,
        log.known_usd(sum(exchanges), sum(unknown_costs), sum(nano_usd)) AS cost_usd,
        sum(simulated)::BIGINT AS simulated
    FROM session_days
    SEMI JOIN recent_sessions USING (connection, session_id)
    GROUP BY project, connection, session_id
), event_counts AS (
    SELECT
        project, connection, session_id, min(occurred_at) AS first_at, max(occurred_at) AS last_at, max(agent) AS agent, count(*) AS events,
        count(*) FILTER (event = 'tool_call') AS tool_calls
    FROM log.agent_events
    SEMI JOIN recent_sessions USING (connection, session_id)
    WHERE log.matches_project(project, $project) AND occurred_at >= $since::TIMESTAMP AND occurred_at < $until::TIMESTAMP
    GROUP BY project, connection, session_id
), sessions AS (
    SELECT
        project, connection, session_id, least(s.first_at, a.first_at) AS first_at, greatest(s.last_at, a.last_at) AS last_at,
        coalesce(s.agent, a.agent) AS agent, coalesce(turns, 0) AS turns, coalesce(anomalies, 0) AS anomalies, tier1, tier2, tier2_5, tier3,
        cost_usd, coalesce(simulated, 0) AS simulated, coalesce(events, 0) AS events, coalesce(tool_calls, 0) AS tool_calls,
        CASE $sort
            WHEN 'at' THEN epoch_us(greatest(s.last_at, a.last_at))::DOUBLE WHEN 'turns' THEN coalesce(turns, 0)::DOUBLE
            WHEN 'events' THEN coalesce(events, 0)::DOUBLE WHEN 'anomalies' THEN coalesce(anomalies, 0)::DOUBLE WHEN 'tier1' THEN tier1
            WHEN 'tier2' THEN tier2 WHEN 'tier2_5' THEN tier2_5 WHEN 'tier3' THEN tier3 WHEN 'cost' THEN cost_usd
        END AS number,
        CASE $sort WHEN 'session' THEN session_id WHEN 'agent' THEN coalesce(s.agent, a.agent) END AS sort_text,
        connection || '/' || session_id AS sort_id
    FROM score_sums AS s
    FULL JOIN event_counts AS a USING (project, connection, session_id)
    WHERE ($agent IS NULL OR coalesce(s.agent, a.agent, '') = $agent) AND ($anomalies IS NULL OR (coalesce(anomalies, 0) > 0) = $anomalies)
        AND ($turns IS NULL OR coalesce(turns, 0) >= $turns)
        AND (
            $least IS NULL AND $most IS NULL
            OR CASE $tier WHEN 'tier1' THEN tier1 WHEN 'tier2' THEN tier2 WHEN 'tier2_5' THEN tier2_5 ELSE tier3 END
                BETWEEN coalesce($least, '-infinity'::DOUBLE) AND coalesce($most, 'infinity'::DOUBLE)
        )
), listed AS (
    -- Read runs only for the page, unless the filter or the order depends on them.
    FROM sessions
    WHERE $failure IS NULL AND $readiness IS NULL AND $sort NOT IN ('readiness', 'trust')
        AND log.listed_after($down, number, sort_text, sort_id, $last_number, $last_text, $last_id)
    ORDER BY
        number IS NULL AND sort_text IS NULL, CASE WHEN $down THEN -number ELSE number END, CASE WHEN NOT $down THEN sort_text END,
        CASE WHEN $down THEN sort_text END DESC, sort_id
    LIMIT $limit
), selected AS MATERIALIZED (
    FROM listed
    UNION ALL
    FROM sessions WHERE $failure IS NOT NULL OR $readiness IS NOT NULL OR $sort IN ('readiness', 'trust')
), numbered AS MATERIALIZED (
    SELECT connection, session_id, number AS run
    FROM log.run_numbers
    SEMI JOIN selected USING (connection, session_id)
    WHERE log.matches_project(project, $project)
), runs AS (
    SELECT
        connection, session_id, any_value(run) AS run, arg_max(readiness_level, (revision, _offset)) AS readiness_level,
        arg_max_null(trust_score, (revision, _offset)) AS trust_score,
        arg_max_null(primary_failure_type, (revision, _offset)) AS primary_failure_type
    FROM log.diagnoses
    JOIN numbered USING (connection, session_id)
    WHERE closed_at >= $since::TIMESTAMP
    GROUP BY connection, session_id
), filtered AS (
    SELECT
        c.* EXCLUDE (number, sort_text, sort_id), printf('run_%03d', run) AS run_id, readiness_level, trust_score, primary_failure_type,
        CASE $sort
            WHEN 'trust' THEN trust_score::DOUBLE
            WHEN 'readiness' THEN list_position(
                ['unsafe_for_production', 'review_recommended', 'ready_for_runtime', 'insufficient_evidence'], readiness_level)::DOUBLE
            ELSE number
        END AS sort_number,
        sort_text, sort_id
    FROM selected AS c
    LEFT JOIN runs USING (connection, session_id)
    WHERE ($failure IS NULL OR (run IS NOT NULL AND coalesce(primary_failure_type, '') = $failure))
        AND ($readiness IS NULL OR readiness_level = $readiness)
), page AS MATERIALIZED (
    FROM filtered
    WHERE log.listed_after($down, sort_number, sort_text, sort_id, $last_number, $last_text, $last_id)
    ORDER BY
        sort_number IS NULL AND sort_text IS NULL, CASE WHEN $down THEN -sort_number ELSE sort_number END,
        CASE WHEN NOT $down THEN sort_text END, CASE WHEN $down THEN sort_text END DESC, sort_id
    LIMIT $limit
), first_turns AS MATERIALIZED (
    -- A session may have begun before the period.
    SELECT connection, session_id, min(first_at) AS occurred_at
    FROM (
        SELECT connection, session_id, first_at FROM log.session_scores WHERE log.matches_project(project, $project)
        UNION ALL
        SELECT connection, session_id, first_at FROM session_days
    )
    SEMI JOIN page USING (connection, session_id)
    GROUP BY connection, session_id
), question_rows AS MATERIALIZED (
    -- Select the few rows by time first, so that texts are read only for them.
    SELECT rowid AS row FROM log.exchanges
    WHERE log.matches_project(project, $project) AND occurred_at IN (SELECT occurred_at FROM first_turns)
), questions AS (
    SELECT connection, session_id, log.excerpt(arg_max(user_message, (revision, _offset))) AS question
    FROM log.exchanges AS e
    SEMI JOIN question_rows ON e.rowid = question_rows.row
    SEMI JOIN first_turns USING (connection, session_id, occurred_at)
    GROUP BY connection, session_id
)
SELECT page.*, question
FROM page
LEFT JOIN questions USING (connection, session_id)
ORDER BY
    sort_number IS NULL AND sort_text IS NULL, CASE WHEN $down THEN -sort_number ELSE sort_number END,
    CASE WHEN NOT $down THEN sort_text END, CASE WHEN $down THEN sort_text END DESC, sort_id
