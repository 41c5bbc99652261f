-- purpose: where a session's events go on, and which of some events the log holds already
-- grain: one row where the session has events
-- parameters: $connection, $session, $event_ids
SELECT
    max(seq) + 1 AS next_seq,
    coalesce(list(DISTINCT e.event_id ORDER BY e.event_id) FILTER (asked.event_id IS NOT NULL), []) AS known
FROM log.agent_events AS e
LEFT JOIN (SELECT DISTINCT unnest($event_ids) AS event_id) AS asked ON e.event_id = asked.event_id
WHERE e.connection = $connection AND e.session_id = $session
HAVING count(*) > 0
