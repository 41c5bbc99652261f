-- purpose: where the events of some sessions go on, and which of some events the log holds already
-- grain: one row per session that has events
-- parameters: $connection, $sessions, $event_ids (the events that are asked for, each with its session)
WITH asked AS (
    SELECT DISTINCT unnest($sessions) AS session_id, unnest($event_ids) AS event_id
)

SELECT
    e.session_id,
    max(e.seq) + 1 AS next_seq,
    coalesce(list(DISTINCT e.event_id ORDER BY e.event_id) FILTER (asked.event_id IS NOT NULL), []) AS known
FROM log.agent_events AS e
LEFT JOIN asked ON e.session_id = asked.session_id AND e.event_id = asked.event_id
WHERE e.connection = $connection AND e.session_id IN (SELECT asked.session_id FROM asked)
GROUP BY e.session_id
ORDER BY e.session_id
