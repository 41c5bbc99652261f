-- purpose: the exchanges that some traces were made into, with the digest of what they say
-- grain: one row per exchange
-- parameters: $connections, $trace_ids (the traces that are asked for, each with its connection)
WITH asked AS (
    SELECT unnest($connections::varchar []) AS connection, unnest($trace_ids::varchar []) AS trace_id
)

SELECT
    e.connection,
    asked.trace_id,
    e.exchange_id,
    e.content_digest
FROM log.exchanges AS e
INNER JOIN asked ON e.connection = asked.connection AND split_part(e.exchange_id, ':', 1) = asked.trace_id
ORDER BY e.connection, e.exchange_id
