-- purpose: what has come from a connection, so that whoever connects an agent sees its first session
-- grain: one row, none where nothing has come
-- parameters: $connection
WITH counted AS (
    SELECT
        (SELECT count(*) FROM log.spans WHERE connection = $connection) AS spans,
        (SELECT count(*) FROM log.current_exchanges WHERE connection = $connection) AS exchanges,
        (SELECT count(*) FROM log.agent_events WHERE connection = $connection) AS events,
        (
            SELECT count(*) FROM (
                SELECT arg_max(state, revision) AS state FROM log.trace_assemblies
                WHERE connection = $connection
                GROUP BY trace_id
            ) WHERE state = 'no_content'
        ) AS without_content
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
    counted.without_content,
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
