-- purpose: what has arrived over a connection, so that whoever connects an agent sees its first session
-- grain: one row, or none if nothing has arrived. The session columns describe the newest exchange
-- parameters: $connection
WITH counted AS (
    SELECT
        (SELECT count(*) FROM log.spans WHERE connection = $connection) AS spans,
        (SELECT count(*) FROM log.current_exchanges WHERE connection = $connection) AS exchanges,
        (SELECT count(*) FROM log.agent_events WHERE connection = $connection) AS events
),

newest AS (
    SELECT
        project,
        exchange_id,
        session_id,
        agent,
        user_message
    FROM log.current_exchanges
    WHERE connection = $connection
    ORDER BY ingested_at DESC, exchange_id ASC
    LIMIT 1
)

SELECT
    counted.spans,
    counted.exchanges,
    counted.events,
    newest.project,
    newest.session_id,
    newest.agent,
    newest.user_message,
    (
        SELECT s.score_id FROM log.scores AS s
        WHERE s.connection = $connection AND s.exchange_id = newest.exchange_id
        LIMIT 1
    ) AS score_id
FROM counted
LEFT JOIN newest ON true
WHERE counted.spans + counted.exchanges + counted.events > 0
