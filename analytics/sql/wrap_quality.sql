-- purpose: the steps of a proper wrap-up (version bump, changelog, learnings, next session, commit) in the last five
--     exchanges of each session
-- grain: one row per session, newest first. score: found / expected
-- parameters: $project (NULL: all except anchor projects), $limit (sessions)
WITH sessions AS (
    SELECT connection, session_id, arg_max(project, _offset) AS project, count(*) AS exchange_count, max(occurred_at) AS last_at
    FROM log.current_exchanges
    WHERE log.matches_project(project, $project)
    GROUP BY connection, session_id
), newest AS (
    SELECT * FROM sessions ORDER BY last_at DESC, connection, session_id LIMIT $limit
), texts AS (
    SELECT connection, session_id, user_message || chr(10) || agent_response AS text
    FROM log.current_exchanges
    SEMI JOIN newest USING (connection, session_id)
    WHERE log.matches_project(project, $project)
    QUALIFY row_number() OVER (PARTITION BY connection, session_id ORDER BY _offset DESC) <= 5
), parsed AS (
    SELECT connection, session_id, log.wrap_steps(text) AS step FROM texts
), step_rows AS (
    SELECT
        connection, session_id,
        unnest([
            {'position': 1, 'step': 'version_bump', 'is_present': step.version_bump},
            {'position': 2, 'step': 'changelog', 'is_present': step.changelog},
            {'position': 3, 'step': 'learnings', 'is_present': step.learnings},
            {'position': 4, 'step': 'next_session_prime', 'is_present': step.next_session_prime},
            {'position': 5, 'step': 'commit', 'is_present': step.commit}
        ], recursive := true)
    FROM parsed
), steps AS (
    SELECT connection, session_id, position, step, bool_or(is_present) AS is_present FROM step_rows GROUP BY ALL
), wrap_ups AS (
    SELECT
        connection, session_id, count(*) FILTER (is_present) / count(*) AS score,
        coalesce(list(step ORDER BY position) FILTER (is_present), []) AS steps_found,
        coalesce(list(step ORDER BY position) FILTER (NOT is_present), []) AS steps_missing
    FROM steps
    GROUP BY connection, session_id
)
SELECT n.project, n.connection, n.session_id, n.exchange_count, n.last_at, f.score, f.steps_found, f.steps_missing
FROM newest AS n
JOIN wrap_ups AS f USING (connection, session_id)
ORDER BY n.last_at DESC, n.connection, n.session_id
