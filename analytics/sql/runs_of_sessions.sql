-- purpose: which of some sessions of a project have ended, and which runs they became
-- grain: one row a session that has ended at least once; run_id: NULL for one without events, of which no run is made; closed_at: its latest end that is recorded, event time
-- parameters: $project, $sessions (list of connection and session id with a slash between)
WITH ends AS (
    SELECT connection, session_id, max(closed_at) AS closed_at
    FROM log.session_closings
    WHERE project = $project AND list_contains($sessions::VARCHAR[], connection || '/' || session_id)
    GROUP BY connection, session_id
), runs AS (
    SELECT connection, session_id, number
    FROM log.run_numbers
    WHERE project = $project AND list_contains($sessions::VARCHAR[], connection || '/' || session_id)
)
SELECT connection, session_id, printf('run_%03d', number) AS run_id, closed_at
FROM ends
FULL JOIN runs USING (connection, session_id)
ORDER BY number NULLS LAST, connection, session_id
