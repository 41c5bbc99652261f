-- purpose: what the calls of some runs said, for those detectors that compare what calls say with each other
-- grain: one row per tool call; run is the number that was given with the session
-- parameters: $runs (list of {run, connection, session_id})
WITH wanted AS (
    SELECT unnest($runs::STRUCT(run BIGINT, connection VARCHAR, session_id VARCHAR)[], recursive := true)
)
SELECT w.run, e.event_id, e.payload
FROM log.agent_events AS e
JOIN wanted AS w USING (connection, session_id)
WHERE e.event = 'tool_call'
ORDER BY w.run, e._offset
