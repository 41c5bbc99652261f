-- purpose: the runs of the given sessions of a project, if they have ended
-- grain: one row per session that has ended. run_id: NULL until it is diagnosed; closed_at: event time of the latest
--     recorded end
-- parameters: $project, $connections and $sessions (parallel lists of connections and session ids)
WITH requested AS MATERIALIZED (
    SELECT unnest($connections::VARCHAR[]) AS connection, unnest($sessions::VARCHAR[]) AS session_id
), ends AS (
    SELECT connection, session_id, max(closed_at) AS closed_at
    FROM log.session_closings
    SEMI JOIN requested USING (connection, session_id)
    WHERE project = $project
    GROUP BY connection, session_id
), runs AS (
    SELECT connection, session_id, number
    FROM log.run_numbers
    SEMI JOIN requested USING (connection, session_id)
    WHERE project = $project
)
SELECT connection, session_id, printf('run_%03d', number) AS run_id, closed_at
FROM ends
FULL JOIN runs USING (connection, session_id)
ORDER BY number NULLS LAST, connection, session_id
