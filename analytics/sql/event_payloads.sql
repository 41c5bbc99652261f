-- purpose: the payloads of some events of a session, in the order in which they were folded, the long ones cut
-- grain: one row per event; place is where it is in its topic, characters how long its whole payload is
-- parameters: $connection, $session, $places (list), $longest (characters of a payload that are kept)
SELECT _offset AS place, left(payload, $longest::BIGINT) AS payload, length(payload) AS characters
FROM log.agent_events
WHERE connection = $connection AND session_id = $session AND _offset IN (SELECT unnest($places::BIGINT[]))
ORDER BY _offset
