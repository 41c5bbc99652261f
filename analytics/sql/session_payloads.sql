-- purpose: a page of a session's events with full payloads, in the order in which they were folded
-- grain: one row per event. place: its offset in the topic
-- parameters: $connection, $session, $after (offset of the last event read; -1: from the first), $limit
SELECT _offset AS place, payload
FROM log.agent_events
WHERE connection = $connection AND session_id = $session AND _offset > $after
ORDER BY _offset
LIMIT $limit
