-- purpose: the payloads of the given events of a session, truncated, in the order in which they were folded
-- grain: one row per event. place: its offset in the topic; characters: length of the full payload
-- parameters: $connection, $session, $places (list of offsets), $longest (maximum length of a payload)
SELECT _offset AS place, left(payload, $longest::BIGINT) AS payload, length(payload) AS characters
FROM log.agent_events
WHERE connection = $connection AND session_id = $session AND _offset IN (SELECT unnest($places::BIGINT[]))
ORDER BY _offset
