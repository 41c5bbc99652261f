-- purpose: the positions of the given events of a session: their turn and their number within it
-- grain: one row per event. part: number of the turn, 0 before the first; row: number of the event within the turn,
--     from 1; place: its offset in the topic
-- parameters: $project, $connection, $session, $since and $until (first and last event time of the session, both
--     inclusive), $events (list of event ids)
WITH numbered AS (
    SELECT *, row_number() OVER (PARTITION BY part ORDER BY occurred_at, place) AS row
    FROM log.session_parts($project, $connection, $session, $since::TIMESTAMP, $until::TIMESTAMP)
)
SELECT event_id, event, tool, part, row, place
FROM numbered
WHERE event_id IN (SELECT unnest($events::VARCHAR[]))
ORDER BY place
