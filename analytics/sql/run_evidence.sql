-- purpose: the fields that the detectors read of the events of the given runs, in the order in which they were folded
-- grain: one row per event. run: the number given with the session
-- parameters: $runs (list of {run, connection, session_id})
WITH requested AS (
    SELECT unnest($runs::STRUCT(run BIGINT, connection VARCHAR, session_id VARCHAR)[], recursive := true)
)
SELECT
    w.run, e.seq, e.event_id, e.event, e.tool, e.call_key, e.action, e.status, e.used, e.referenced, e.invoked, e.saturation, e.tokens,
    e.source, e.exchange_id, e.prompt_tokens, e.cached_tokens
FROM log.agent_events AS e
JOIN requested AS w USING (connection, session_id)
ORDER BY w.run, e._offset
