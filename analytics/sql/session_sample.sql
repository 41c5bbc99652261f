-- purpose: a repeatable random sample of whole sessions of a project, from which to compute an estimate
-- grain: one row per exchange, by session and event time. turn_number: as delivered or as counted by its score, NULL
--     without either; total: number of the project's exchanges in the period
-- parameters: $project, $from (inclusive) and $to (exclusive) in event time; $limit: exchanges after which no further
--     session is drawn, and the maximum per session
WITH sessions AS (
    SELECT "connection", session_id, count(*) AS exchanges
    FROM log.current_exchanges
    WHERE project = $project AND occurred_at >= $from::TIMESTAMP AND occurred_at < $to::TIMESTAMP
    GROUP BY "connection", session_id
), ranked AS (
    SELECT
        "connection", session_id, sum(exchanges) OVER ()::BIGINT AS total,
        sum(least(exchanges, $limit)) OVER (ORDER BY md5("connection" || '/' || session_id), "connection", session_id)
            - least(exchanges, $limit) AS drawn_before
    FROM sessions
), selected AS (
    SELECT
        e."connection", e.session_id, e.exchange_id, e.turn_number, e.user_message, e.agent_response, e.output_tokens,
        e.tool_calls, e.occurred_at, e._offset, d.total
    FROM log.current_exchanges AS e
    JOIN ranked AS d ON e."connection" = d."connection" AND e.session_id = d.session_id AND d.drawn_before < $limit
    WHERE e.project = $project AND e.occurred_at >= $from::TIMESTAMP AND e.occurred_at < $to::TIMESTAMP
    QUALIFY row_number() OVER (PARTITION BY e."connection", e.session_id ORDER BY e.occurred_at, e._offset) <= $limit
)
SELECT
    e."connection", e.session_id, e.exchange_id, coalesce(e.turn_number, s.turn_number) AS turn_number,
    e.user_message, e.agent_response, e.output_tokens, e.tool_calls, e.total
FROM selected AS e
LEFT JOIN scores AS s
    ON s."connection" = e."connection" AND s.exchange_id = e.exchange_id AND s.project = $project
    AND s.exchange_at >= $from::TIMESTAMP AND s.exchange_at < $to::TIMESTAMP
ORDER BY e."connection", e.session_id, e.occurred_at, e._offset
