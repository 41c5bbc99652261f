-- purpose: sessions to close because nothing has arrived from them for longer than the session gap
-- grain: one row per session and topic. A session without events is also closed in the topic of events, where it
--     becomes a run. closed_at: the time of closing, always later than the last closing in that topic
-- parameters: $as_of, $gap_seconds, $heard_before (only sessions whose newest record was ingested before; NULL: any;
--     old records may be ingested today), $limit (NULL: all)
WITH entries AS (
    SELECT connection, session_id, occurred_at, ingested_at, _offset AS exchange FROM log.exchanges
    UNION ALL BY NAME
    SELECT connection, session_id, occurred_at, ingested_at, _offset AS event FROM log.agent_events
    UNION ALL BY NAME
    SELECT connection, session_id, occurred_at, ingested_at FROM log.heartbeats
    UNION ALL BY NAME
    SELECT connection, session_id, closed_at AS exchanges_closed_at, _offset AS exchanges_closing FROM log.session_closings
        WHERE _topic = 'exchanges'
    UNION ALL BY NAME
    SELECT connection, session_id, closed_at AS events_closed_at, _offset AS events_closing FROM log.session_closings
        WHERE _topic = 'agent-events'
), sessions AS (
    SELECT
        connection, session_id, max(exchange) AS last_exchange, max(event) AS last_event,
        last_exchange > coalesce(max(exchanges_closing), -1) AS exchanges_open,
        CASE WHEN last_event IS NOT NULL THEN last_event > coalesce(max(events_closing), -1)
            WHEN max(events_closing) IS NULL THEN last_exchange IS NOT NULL AND connection <> 'anchors'
            -- A session closed only in the topic of events is about to be closed in that of exchanges, which is written second.
            ELSE exchanges_open AND max(events_closed_at) <= max(exchanges_closed_at) END AS events_open,
        max(occurred_at) AS last_at,
        last_at + to_seconds($gap_seconds) AS idle_at,
        -- Use the topic's own closings: if only one topic's closing is stored yet, the other's is written again with the same content.
        greatest(idle_at, max(exchanges_closed_at) + INTERVAL 1 MICROSECOND) AS exchanges_close_at,
        greatest(idle_at, max(events_closed_at) + INTERVAL 1 MICROSECOND) AS events_close_at
    FROM entries
    GROUP BY connection, session_id
    HAVING (exchanges_open OR events_open) AND last_at < $as_of::TIMESTAMP - to_seconds($gap_seconds)
        AND ($heard_before IS NULL OR max(ingested_at) < $heard_before::TIMESTAMP)
)
SELECT
    s.connection, s.session_id, t.topic, r.project, r.agent, s.last_at,
    CASE t.topic WHEN 'exchanges' THEN s.exchanges_close_at ELSE s.events_close_at END AS closed_at
FROM sessions AS s
JOIN log.exchanges AS r ON s.connection = r.connection AND s.session_id = r.session_id AND s.last_exchange = r._offset
JOIN (VALUES ('exchanges'), ('agent-events')) AS t(topic)
    ON CASE t.topic WHEN 'exchanges' THEN s.exchanges_open ELSE s.last_event IS NULL AND s.events_open END
UNION ALL
SELECT s.connection, s.session_id, 'agent-events' AS topic, r.project, r.agent, s.last_at, s.events_close_at AS closed_at
FROM sessions AS s
JOIN log.agent_events AS r ON s.connection = r.connection AND s.session_id = r.session_id AND s.last_event = r._offset
WHERE s.events_open
ORDER BY last_at, connection, session_id, topic
LIMIT $limit
