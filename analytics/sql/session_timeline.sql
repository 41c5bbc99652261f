-- purpose: the first events of a session without their payloads, in the order in which they were folded: when each was, and what the detectors read of it
-- grain: one row per event; place is where it is in its topic
-- parameters: $connection, $session, $limit
WITH first AS (
    -- In a very long session, rows beyond the limit are not sorted with all their columns.
    SELECT max(_offset) AS last_offset
    FROM (
        SELECT _offset FROM log.agent_events WHERE connection = $connection AND session_id = $session ORDER BY _offset LIMIT $limit
    )
)
SELECT
    seq, event_id, event, tool, call_key, action, status, used, referenced, invoked, saturation, tokens,
    source, exchange_id, prompt_tokens, cached_tokens, occurred_at,
    _offset AS place
FROM log.agent_events
JOIN first ON _offset <= last_offset
WHERE connection = $connection AND session_id = $session
ORDER BY _offset
