-- purpose: the payloads of the tool calls and descriptions of tools of the given runs, for detectors that read them
-- grain: one row per event. run: the number given with the session
-- parameters: $runs (list of {run, connection, session_id})
WITH requested AS (
    SELECT unnest($runs::STRUCT(run BIGINT, connection VARCHAR, session_id VARCHAR)[], recursive := true)
)
SELECT w.run, e.event_id, e.payload
FROM log.agent_events AS e
JOIN requested AS w USING (connection, session_id)
WHERE e.event IN ('tool_call', 'tool_definitions')
ORDER BY w.run, e._offset
