-- purpose: sessions that have something to close and of which nothing was heard for longer than the session gap
-- grain: one row a session and topic; closed_at is when it counts as closed, always later than its last closing
-- parameters: $as_of, $gap_seconds, $heard_before (taken in before then, NULL for whenever: records of long ago may come today)
WITH entries AS (
    SELECT connection, session_id, occurred_at, ingested_at, _offset AS exchange FROM log.exchanges
    UNION ALL BY NAME
    SELECT connection, session_id, occurred_at, ingested_at, _offset AS event FROM log.agent_events
    UNION ALL BY NAME
    SELECT connection, session_id, occurred_at, ingested_at FROM log.heartbeats
    UNION ALL BY NAME
    SELECT connection, session_id, closed_at, _offset AS exchanges_closing FROM log.session_closings WHERE _topic = 'exchanges'
    UNION ALL BY NAME
    SELECT connection, session_id, closed_at, _offset AS events_closing FROM log.session_closings WHERE _topic = 'agent-events'
), sessions AS (
    SELECT
        connection, session_id, max(exchange) AS last_exchange, max(event) AS last_event,
        last_exchange > coalesce(max(exchanges_closing), -1) AS exchanges_open,
        last_event > coalesce(max(events_closing), -1) AS events_open,
        max(occurred_at) AS last_at,
        greatest(last_at + to_seconds($gap_seconds), max(closed_at) + INTERVAL 1 MICROSECOND) AS closed_at
    FROM entries
    GROUP BY ALL
    HAVING (exchanges_open OR events_open) AND last_at < $as_of::TIMESTAMP - to_seconds($gap_seconds)
        AND ($heard_before IS NULL OR max(ingested_at) < $heard_before::TIMESTAMP)
)
SELECT s.connection, s.session_id, 'exchanges' AS topic, r.project, r.agent, s.last_at, s.closed_at
FROM sessions AS s
JOIN log.exchanges AS r ON s.connection = r.connection AND s.session_id = r.session_id AND s.last_exchange = r._offset
WHERE s.exchanges_open
UNION ALL
SELECT s.connection, s.session_id, 'agent-events' AS topic, r.project, r.agent, s.last_at, s.closed_at
FROM sessions AS s
JOIN log.agent_events AS r ON s.connection = r.connection AND s.session_id = r.session_id AND s.last_event = r._offset
WHERE s.events_open
ORDER BY last_at, connection, session_id, topic
