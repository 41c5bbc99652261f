-- purpose: the projects and connections with a session of a given id, since ids are unique only within a connection,
--     with the session's times and end
-- grain: one row per project and connection with records of the session, the newest record first. first_at, last_at:
--     event times of its first and last record, or of its end if no other record is left; has_turns: whether it has
--     exchanges or scores; events: number of events; diagnosis: offset of the current diagnosis in its topic, NULL
--     without one; closed_at, reason: NULL if it has never ended; is_open: whether records arrived after its last end
-- parameters: $session, $projects (list; NULL: any), $connection (NULL: any)
WITH records AS (
    SELECT project, connection, occurred_at AS began_at, occurred_at AS went_at, true AS is_turn, _offset AS exchange
    FROM log.exchanges
    WHERE session_id = $session AND ($connection IS NULL OR connection = $connection)
    UNION ALL BY NAME
    SELECT project, connection, exchange_at AS began_at, exchange_at AS went_at, true AS is_turn
    FROM log.scores
    WHERE session_id = $session AND ($connection IS NULL OR connection = $connection)
    UNION ALL BY NAME
    SELECT project, connection, occurred_at AS began_at, occurred_at AS went_at, _offset AS event
    FROM log.agent_events
    WHERE session_id = $session AND ($connection IS NULL OR connection = $connection)
    UNION ALL BY NAME
    SELECT project, connection, occurred_at AS began_at, occurred_at AS went_at
    FROM log.heartbeats
    WHERE session_id = $session AND ($connection IS NULL OR connection = $connection)
    UNION ALL BY NAME
    SELECT
        project, connection, coalesce(started_at, ended_at) AS began_at, coalesce(ended_at, started_at) AS went_at,
        closed_at AS diagnosed_at,
        {'version': (revision, _offset), 'position': _offset, 'reason': closed_reason, 'events': event_count} AS diagnosed
    FROM log.diagnoses
    WHERE session_id = $session AND ($connection IS NULL OR connection = $connection)
    UNION ALL BY NAME
    SELECT
        project, connection, closed_at, reason, CASE _topic WHEN 'exchanges' THEN _offset END AS closed_exchange,
        CASE _topic WHEN 'agent-events' THEN _offset END AS closed_event
    FROM log.session_closings
    WHERE session_id = $session AND ($connection IS NULL OR connection = $connection)
), summed AS (
    SELECT
        project, connection, min(began_at) AS began_at, max(went_at) AS went_at, min(closed_at) AS first_closed_at,
        max(closed_at) AS last_closed_at, arg_max(reason, closed_at) AS reason, max(diagnosed_at) AS diagnosed_at,
        max(diagnosed) AS diagnosed, max(max(diagnosed)) OVER (PARTITION BY connection) AS newest,
        coalesce(bool_or(is_turn), false) AS has_turns, max(exchange) AS last_exchange, max(event) AS last_event,
        count(event) AS events, max(closed_exchange) AS closed_exchange, max(closed_event) AS closed_event
    FROM records
    GROUP BY project, connection
)
SELECT
    project, connection, coalesce(began_at, first_closed_at) AS first_at, coalesce(went_at, last_closed_at) AS last_at,
    has_turns, events, newest.position AS diagnosis, coalesce(last_closed_at, diagnosed_at) AS closed_at,
    coalesce(reason, diagnosed.reason) AS reason,
    coalesce(last_closed_at, diagnosed_at) IS NULL OR coalesce(last_exchange > coalesce(closed_exchange, -1), false)
        OR coalesce(last_event > coalesce(closed_event, -1) AND events > coalesce(diagnosed.events, 0), false) AS is_open
FROM summed
WHERE ($projects IS NULL OR list_contains($projects::VARCHAR[], project)) AND NOT starts_with(project, 'anchors.')
ORDER BY last_at DESC, project, connection
