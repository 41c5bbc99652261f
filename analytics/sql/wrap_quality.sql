-- purpose: whether the ends of sessions show the steps of a proper wrap-up (version bump, changelog, learnings, next session, commit) in their last five exchanges
-- grain: one row a session, the newest first; score: found / expected
-- parameters: $project (NULL for all but those of anchors), $limit (sessions)
WITH heard AS (
    SELECT connection, session_id, arg_max(project, _offset) AS project, count(*) AS exchange_count, max(occurred_at) AS last_at
    FROM log.exchanges
    WHERE log.is_asked(project, $project)
    GROUP BY connection, session_id
), newest AS (
    SELECT * FROM heard ORDER BY last_at DESC, connection, session_id LIMIT $limit
), texts AS (
    SELECT connection, session_id, user_message || chr(10) || agent_response AS text
    FROM log.exchanges
    SEMI JOIN newest USING (connection, session_id)
    WHERE log.is_asked(project, $project)
    QUALIFY row_number() OVER (PARTITION BY connection, session_id ORDER BY _offset DESC) <= 5
), steps(position, step, pattern) AS (
    VALUES
        (1, 'version_bump', '\bversion[- ]bump|\bbump(ed|ing)?\s+(the\s+)?(version\s+)?to\s+v?[0-9]|\bversion\.json\b'),
        (2, 'changelog', '\bchangelog\b'),
        (3, 'learnings', '\blearnings\b|\bwhat\b[^\n]{0,80}\blearn(ed|t)\b|\btake-?aways?\b|\bretrospective\b'),
        (4, 'next_session_prime', '\bnext\s+session\b|\bsession\s+prime\b|\bpriming\b|\bnext\s+steps\b'),
        (5, 'commit', '\bgit\s+commit\b|\bcommitted\b|\bcommit\s+message\b')
), looked AS (
    SELECT connection, session_id, position, step, bool_or(regexp_matches(text, pattern, 'i')) AS is_there
    FROM texts, steps
    GROUP BY ALL
), found AS (
    SELECT
        connection, session_id, count(*) FILTER (is_there) / count(*) AS score,
        coalesce(list(step ORDER BY position) FILTER (is_there), []) AS steps_found,
        coalesce(list(step ORDER BY position) FILTER (NOT is_there), []) AS steps_missing
    FROM looked
    GROUP BY connection, session_id
)
SELECT n.project, n.connection, n.session_id, n.exchange_count, n.last_at, f.score, f.steps_found, f.steps_missing
FROM newest AS n
JOIN found AS f USING (connection, session_id)
ORDER BY n.last_at DESC, n.connection, n.session_id
