-- purpose: the raw events of a session, in the order in which they were folded
-- grain: one row per event
-- parameters: $connection, $session
SELECT seq, event_id, payload
FROM log.agent_events
WHERE connection = $connection AND session_id = $session
ORDER BY _offset
