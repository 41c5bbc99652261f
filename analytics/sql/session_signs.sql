-- purpose: the open sessions that were active within the session gap, with the time of their newest record. Records
--     older than $history_seconds on arrival do not count as activity. A session is idle if its last turn has ended,
--     so that it waits for its user
-- grain: one row per session, the longest silent first
-- parameters: $as_of, $gap_seconds, $history_seconds (age on arrival from which a record is history), $project (NULL:
--     all), $silent_since (only sessions last active before; NULL: all), $after_at and $after_place (sort keys of the
--     last session shown; NULL: first page), $limit (NULL: all)
WITH records AS (
    SELECT connection, session_id, project, occurred_at, ingested_at, _offset AS exchange FROM log.exchanges
    UNION ALL BY NAME
    SELECT connection, session_id, project, occurred_at, ingested_at, _offset AS event FROM log.agent_events
    UNION ALL BY NAME
    SELECT connection, session_id, project, occurred_at, ingested_at, ingested_at AS heartbeat FROM log.heartbeats
), sessions AS MATERIALIZED (
    SELECT
        connection, session_id, max(exchange) AS last_exchange, max(event) AS last_event, max(heartbeat) AS last_heartbeat,
        max(ingested_at) AS last_received, arg_max(project, ingested_at) AS project,
        max(ingested_at) FILTER (WHERE exchange IS NOT NULL) AS exchange_received_at,
        max(occurred_at) FILTER (WHERE exchange IS NOT NULL) AS last_exchange_at,
        max(ingested_at) FILTER (WHERE event IS NOT NULL) AS event_received_at,
        max(occurred_at) FILTER (WHERE event IS NOT NULL) AS last_event_at
    FROM records
    WHERE ingested_at >= $as_of::TIMESTAMP - to_seconds($gap_seconds) AND occurred_at >= ingested_at - to_seconds($history_seconds)
    GROUP BY connection, session_id
), closings AS (
    SELECT
        connection, session_id, max(ingested_at) AS closed,
        max(_offset) FILTER (WHERE _topic = 'exchanges') AS last_exchange, max(_offset) FILTER (WHERE _topic = 'agent-events') AS last_event
    FROM log.session_closings
    SEMI JOIN sessions USING (connection, session_id)
    WHERE ingested_at >= $as_of::TIMESTAMP - to_seconds($gap_seconds)
    GROUP BY connection, session_id
), traces AS (
    -- A trace whose root span has arrived is a finished turn, with or without texts.
    SELECT connection, session_id, max(assembled_at) AS settled
    FROM log.trace_assemblies
    SEMI JOIN sessions USING (connection, session_id)
    WHERE assembled_at >= $as_of::TIMESTAMP - to_seconds($gap_seconds) AND reason = 'settled'
    GROUP BY connection, session_id
)
SELECT
    connection, session_id, s.project, s.last_received, md5(connection || '/' || session_id) AS place,
    e.ended IS NOT NULL AND (s.last_heartbeat IS NULL OR s.last_heartbeat <= e.ended)
        -- A turn's events may arrive after its exchange.
        AND NOT coalesce(
            s.event_received_at > e.ended AND (s.last_exchange_at IS NULL OR s.last_event_at > s.last_exchange_at), false
        ) AS is_idle
FROM sessions AS s
LEFT JOIN closings AS c USING (connection, session_id)
LEFT JOIN traces AS t USING (connection, session_id)
CROSS JOIN LATERAL (SELECT greatest(s.exchange_received_at, t.settled) AS ended) AS e
WHERE ($project IS NULL OR s.project = $project) AND NOT starts_with(s.project, 'anchors.')
    AND ($silent_since IS NULL OR s.last_received < $silent_since::TIMESTAMP)
    AND (
        s.last_exchange > coalesce(c.last_exchange, -1) OR s.last_event > coalesce(c.last_event, -1)
        OR (s.last_heartbeat IS NOT NULL AND (c.closed IS NULL OR s.last_heartbeat > c.closed))
    )
    AND ($after_at IS NULL OR (s.last_received, place) > ($after_at::TIMESTAMP, $after_place))
ORDER BY s.last_received, place
LIMIT $limit
