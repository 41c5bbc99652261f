-- purpose: the events of a session whose payloads may report a failure, in the order in which they were folded. The
--     caller decides after parsing the payload
-- grain: one row per event. place: its offset in the topic
-- parameters: $connection, $session, $last (offset of the last event to read), $statuses (beginnings of a status that
--     mean a failure, separated by |), $longest (maximum length of a payload; longer ones are skipped), $limit
SELECT _offset AS place, event, payload
FROM log.agent_events
WHERE connection = $connection AND session_id = $session AND _offset <= $last AND strlen(payload) <= $longest AND (
    event = 'error_event'
    OR regexp_matches(
        payload,
        '"is_error":true|"error":[^nf]|"(ok|success)":false|"(exit_?code|return_?code)":(-|[1-9]|0[.])|"(tool_)?status":"[[:space:]]*('
        || $statuses || ')',
        'i'
    )
)
ORDER BY _offset
LIMIT $limit
