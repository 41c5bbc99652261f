-- purpose: a part of a session's events, whole, in the order in which they were folded
-- grain: one row per event; place is where it is in its topic
-- parameters: $connection, $session, $after (place of an event: only those behind it; -1: from the first), $limit
SELECT _offset AS place, payload
FROM log.agent_events
WHERE connection = $connection AND session_id = $session AND _offset > $after
ORDER BY _offset
LIMIT $limit
