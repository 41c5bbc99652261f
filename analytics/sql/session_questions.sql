-- purpose: the first questions of sessions, which name them in lists and titles
-- grain: one row per session whose first scored exchange is stored. question: an excerpt of it
-- parameters: $project, $sessions (list of structs of connection and session_id)
WITH named AS (
    SELECT unnest($sessions::STRUCT(connection VARCHAR, session_id VARCHAR)[], recursive := true)
), first_turns AS MATERIALIZED (
    SELECT connection, session_id, min(first_at) AS occurred_at
    FROM log.session_scores
    SEMI JOIN named USING (connection, session_id)
    WHERE project = $project
    GROUP BY connection, session_id
), question_rows AS MATERIALIZED (
    -- Select the few rows by time first, so that texts are read only for them.
    SELECT rowid AS row FROM log.exchanges WHERE project = $project AND occurred_at IN (SELECT occurred_at FROM first_turns)
)
SELECT connection, session_id, log.excerpt(arg_max(user_message, (revision, _offset))) AS question
FROM log.exchanges AS e
SEMI JOIN question_rows ON e.rowid = question_rows.row
SEMI JOIN first_turns USING (connection, session_id, occurred_at)
GROUP BY connection, session_id
ORDER BY connection, session_id
