-- purpose: which of some sessions of a project have ended, and which runs they became
-- grain: one row per session that has ended at least once; run_id: NULL until its end is diagnosed; closed_at: its latest end that is recorded, event time
-- parameters: $project, $connections and $sessions (lists of the same length: connection and id of each session)
WITH wanted AS MATERIALIZED (
    SELECT unnest($connections::VARCHAR[]) AS connection, unnest($sessions::VARCHAR[]) AS session_id
), ends AS (
    SELECT connection, session_id, max(closed_at) AS closed_at
    FROM log.session_closings
    SEMI JOIN wanted USING (connection, session_id)
    WHERE project = $project
    GROUP BY connection, session_id
), runs AS (
    SELECT connection, session_id, number
    FROM log.run_numbers
    SEMI JOIN wanted USING (connection, session_id)
    WHERE project = $project
)
SELECT connection, session_id, printf('run_%03d', number) AS run_id, closed_at
FROM ends
FULL JOIN runs USING (connection, session_id)
ORDER BY number NULLS LAST, connection, session_id
