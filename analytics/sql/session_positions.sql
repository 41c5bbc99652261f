-- purpose: the next sequence number of each of the given sessions, and which of the given events are already stored
-- grain: one row per session with events. known: ids of the stored events
-- parameters: $connection, $sessions, $event_ids (parallel lists: events and their sessions)
WITH requested AS (
    SELECT DISTINCT unnest($sessions) AS session_id, unnest($event_ids) AS event_id
)

SELECT
    e.session_id,
    max(e.seq) + 1 AS next_seq,
    coalesce(list(DISTINCT e.event_id ORDER BY e.event_id) FILTER (requested.event_id IS NOT NULL), []) AS known
FROM log.agent_events AS e
LEFT JOIN requested ON e.session_id = requested.session_id AND e.event_id = requested.event_id
WHERE e.connection = $connection AND e.session_id IN (SELECT requested.session_id FROM requested)
GROUP BY e.session_id
ORDER BY e.session_id
