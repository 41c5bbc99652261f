-- purpose: the payloads of the given events of a session, truncated, in the order in which they were folded
-- grain: one row per event. place: its offset in the topic; characters: length of the full payload; duration_ms, call_id: the
--     reported duration of a tool call and the id of the call, NULL if not reported
-- parameters: $connection, $session, $places (list of offsets), $longest (maximum length of a payload)
SELECT
    _offset AS place, left(payload, $longest::BIGINT) AS payload, length(payload) AS characters,
    CASE WHEN event = 'tool_output' THEN TRY_CAST(TRY(json_extract_string(payload, '$.duration_ms')) AS DOUBLE) END AS duration_ms,
    CASE WHEN event IN ('tool_call', 'tool_output') THEN TRY(json_extract_string(payload, '$.tool_call_id')) END AS call_id
FROM log.agent_events
WHERE connection = $connection AND session_id = $session AND _offset IN (SELECT unnest($places::BIGINT[]))
ORDER BY _offset
