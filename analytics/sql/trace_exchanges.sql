-- purpose: the newest revisions of the exchanges that the given traces produced, including withdrawn ones
-- grain: one row per exchange, with the columns of its record, oldest first
-- parameters: $connections, $trace_ids (parallel lists)
WITH requested AS (
    SELECT unnest($connections::varchar []) AS connection, unnest($trace_ids::varchar []) AS trace_id
)

SELECT e.* EXCLUDE (_topic, _partition, _offset)
FROM log.exchanges AS e
SEMI JOIN requested ON e.connection = requested.connection AND split_part(e.exchange_id, ':', 1) = requested.trace_id
QUALIFY row_number() OVER (PARTITION BY connection, exchange_id ORDER BY revision DESC, _partition, _offset) = 1
ORDER BY connection, occurred_at, exchange_id
