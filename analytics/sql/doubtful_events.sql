-- purpose: the events of a session whose payloads perhaps say that something failed, in the order in which they were folded; who reads a payload decides
-- grain: one row per event; place is where it is in its topic
-- parameters: $connection, $session, $last (place of the last event that is looked at), $statuses (what a status says of a failure, a vertical bar between), $longest (characters of a payload; longer ones are left out), $limit
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
