-- purpose: the current diagnoses of the given sessions
-- grain: one row per diagnosed session, with the columns of its record
-- parameters: $sessions (list of {connection, session_id})
WITH requested AS (
    SELECT unnest($sessions::STRUCT(connection VARCHAR, session_id VARCHAR)[], recursive := true)
)
SELECT d.* EXCLUDE (_topic, _partition, _offset)
FROM log.diagnoses AS d
SEMI JOIN requested USING (connection, session_id)
QUALIFY row_number() OVER (PARTITION BY connection, session_id ORDER BY revision DESC, _offset DESC) = 1
ORDER BY connection, session_id
