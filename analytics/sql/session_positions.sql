-- purpose: where a session's events go on, and which of some events the log holds already
-- grain: one row
-- parameters: $connection, $session, $event_ids
WITH held AS (
    SELECT event_id, seq FROM log.agent_events WHERE connection = $connection AND session_id = $session
)
SELECT
    (SELECT coalesce(max(seq) + 1, 0) FROM held) AS next_seq,
    (SELECT coalesce(list(DISTINCT event_id ORDER BY event_id), []) FROM held WHERE event_id IN (SELECT unnest($event_ids))) AS known
