-- purpose: those of the given sessions whose events have ended and that have no diagnosis yet
-- grain: one row per session
-- parameters: $sessions (list of {connection, session_id})
WITH requested AS (
    SELECT DISTINCT item.connection AS connection, item.session_id AS session_id
    FROM (SELECT unnest($sessions::STRUCT(connection VARCHAR, session_id VARCHAR)[]) AS item)
)
SELECT connection, session_id
FROM requested AS w
WHERE EXISTS (
        SELECT 1 FROM log.session_closings AS c
        WHERE c.connection = w.connection AND c.session_id = w.session_id AND c._topic = 'agent-events'
    )
    AND NOT EXISTS (SELECT 1 FROM log.diagnoses AS d WHERE d.connection = w.connection AND d.session_id = w.session_id)
ORDER BY connection, session_id
