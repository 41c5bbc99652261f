-- purpose: the exchanges that some traces were made into, as they were told last, also those that were withdrawn
-- grain: one row per exchange, with the columns of its record; the oldest of a trace first
-- parameters: $connections, $trace_ids (the traces that are asked for, each with its connection)
WITH asked AS (
    SELECT unnest($connections::varchar []) AS connection, unnest($trace_ids::varchar []) AS trace_id
)

SELECT e.* EXCLUDE (_topic, _partition, _offset)
FROM log.exchanges AS e
SEMI JOIN asked ON e.connection = asked.connection AND split_part(e.exchange_id, ':', 1) = asked.trace_id
QUALIFY row_number() OVER (PARTITION BY connection, exchange_id ORDER BY revision DESC, _partition, _offset) = 1
ORDER BY connection, occurred_at, exchange_id
