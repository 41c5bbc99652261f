-- purpose: the first events of a session in the order in which they were folded, with their times and the fields that
--     the detectors read, without payloads
-- grain: one row per event. place: its offset in the topic
-- parameters: $connection, $session, $limit
WITH first AS (
    -- Find the limit by offset first, so that a very long session is not sorted with all columns.
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
