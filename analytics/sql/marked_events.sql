-- purpose: where some events of a session lie in it: in which turn, and where among the events of the turn
-- grain: one row per event; part is the place of its turn, 0 before the first one; row counts the events of the part from 1; place is where the event is in its topic
-- parameters: $project, $connection, $session, $since and $until (event times between which the session was, both inclusive), $events (list of event ids)
WITH numbered AS (
    SELECT *, row_number() OVER (PARTITION BY part ORDER BY occurred_at, place) AS row
    FROM log.session_parts($project, $connection, $session, $since::TIMESTAMP, $until::TIMESTAMP)
)
SELECT event_id, event, tool, part, row, place
FROM numbered
WHERE event_id IN (SELECT unnest($events::VARCHAR[]))
ORDER BY place
