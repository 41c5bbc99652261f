-- purpose: the first events of a session without their payloads, in the order in which they were folded: when each was, and what the detectors read of it
-- grain: one row an event; place is where it is in its topic
-- parameters: $connection, $session, $limit
SELECT
    seq, event_id, event, tool, call_key, action, status, used, referenced, invoked, saturation, tokens,
    source, exchange_id, prompt_tokens, cached_tokens, occurred_at,
    _offset AS place
FROM log.agent_events
WHERE connection = $connection AND session_id = $session
ORDER BY _offset
LIMIT $limit
