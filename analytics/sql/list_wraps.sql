-- purpose: the wrap-ups of a project's sessions: the steps of a proper wrap-up found in the last five exchanges,
--     filtered, sorted and paged
-- grain: one row per session whose last exchange is in the period; exchange_count includes earlier ones. found:
--     number of steps; score: found / expected; sort_number, sort_text, sort_id: sort keys
-- parameters: $project, $since (inclusive) and $until (exclusive) of a session's last exchange (NULL: unbounded),
--     $agent ('' for unnamed; NULL: any), $missing (a missing step; NULL: any), $least and $most (inclusive bounds of
--     the number of steps; NULL: unbounded), $sort (at, session, agent, exchanges or found), $down (true:
--     descending), $last_number, $last_text, $last_id (sort keys of the last row already listed; NULL: first page),
--     $limit
WITH recent AS (
    -- Without filters, the first page is among the sessions of the last 5,000 exchanges, if these cover enough sessions.
    -- No join here: only a plain scan starts with the last rows.
    SELECT connection, session_id, occurred_at
    FROM log.exchanges
    WHERE $sort = 'at' AND $down AND $last_id IS NULL AND $agent IS NULL AND $missing IS NULL AND $least IS NULL AND $most IS NULL
        AND project = $project AND ($since IS NULL OR occurred_at >= $since::TIMESTAMP)
            AND ($until IS NULL OR occurred_at < $until::TIMESTAMP)
    ORDER BY occurred_at DESC
    LIMIT 5000
), bound AS (
    SELECT
        CASE WHEN count(DISTINCT (connection, session_id)) > $limit THEN min(occurred_at)
            ELSE coalesce($since::TIMESTAMP, TIMESTAMP '1970-01-01') END AS earliest
    FROM recent
), later_sessions AS (
    SELECT DISTINCT connection, session_id FROM log.exchanges WHERE project = $project AND occurred_at >= $until::TIMESTAMP
), ended_sessions AS (
    SELECT DISTINCT connection, session_id
    FROM log.exchanges JOIN bound ON occurred_at >= earliest
    ANTI JOIN later_sessions USING (connection, session_id)
    WHERE project = $project AND ($until IS NULL OR occurred_at < $until::TIMESTAMP)
), session_counts AS (
    SELECT
        connection, session_id, max(agent) AS agent, count(*) AS exchange_count, max(occurred_at) AS last_at, max(_offset, 5) AS offsets
    FROM log.current_exchanges
    SEMI JOIN ended_sessions USING (connection, session_id)
    WHERE project = $project
    GROUP BY connection, session_id
), ends AS (
    SELECT connection, session_id, unnest(offsets) AS _offset FROM session_counts WHERE $agent IS NULL OR coalesce(agent, '') = $agent
), steps AS (
    SELECT connection, session_id, log.wrap_steps(user_message || chr(10) || agent_response) AS step
    FROM log.exchanges
    JOIN ends USING (connection, session_id, _offset)
    WHERE project = $project
), wrap_ups AS (
    SELECT
        connection, session_id, bool_or(step.version_bump) AS version_bump, bool_or(step.changelog) AS changelog,
        bool_or(step.learnings) AS learnings, bool_or(step.next_session_prime) AS next_session_prime, bool_or(step.commit) AS "commit"
    FROM steps
    GROUP BY connection, session_id
), filtered AS (
    SELECT
        h.* EXCLUDE (offsets), printf('run_%03d', number) AS run_id, f.* EXCLUDE (connection, session_id),
        version_bump::BIGINT + changelog::BIGINT + learnings::BIGINT + next_session_prime::BIGINT + "commit"::BIGINT AS found,
        found / 5 AS score,
        CASE $sort
            WHEN 'at' THEN epoch_us(last_at)::DOUBLE WHEN 'exchanges' THEN exchange_count::DOUBLE WHEN 'found' THEN found::DOUBLE
        END AS sort_number,
        CASE $sort WHEN 'session' THEN session_id WHEN 'agent' THEN agent END AS sort_text,
        connection || '/' || session_id AS sort_id
    FROM session_counts AS h
    JOIN wrap_ups AS f USING (connection, session_id)
    LEFT JOIN (SELECT connection, session_id, number FROM log.run_numbers WHERE project = $project) AS r USING (connection, session_id)
    WHERE ($missing IS NULL OR NOT CASE $missing
            WHEN 'version_bump' THEN version_bump WHEN 'changelog' THEN changelog WHEN 'learnings' THEN learnings
            WHEN 'next_session_prime' THEN next_session_prime ELSE "commit" END)
)
SELECT *
FROM filtered
WHERE found BETWEEN coalesce($least::DOUBLE, 0) AND coalesce($most::DOUBLE, 5)
    AND log.listed_after($down, sort_number, sort_text, sort_id, $last_number, $last_text, $last_id)
ORDER BY
    sort_number IS NULL AND sort_text IS NULL, CASE WHEN $down THEN -sort_number ELSE sort_number END,
    CASE WHEN NOT $down THEN sort_text END, CASE WHEN $down THEN sort_text END DESC, sort_id
LIMIT $limit
