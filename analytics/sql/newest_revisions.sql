-- purpose: some exchanges as their source told them last, whole, also those that were withdrawn: what a further revision of them goes on from
-- grain: one row per exchange that is known, with the columns of its record
-- parameters: $exchanges (list of {connection, exchange_id})
WITH wanted AS (
    SELECT unnest($exchanges::STRUCT(connection VARCHAR, exchange_id VARCHAR)[], recursive := true)
)
SELECT e.* EXCLUDE (_topic, _partition, _offset)
FROM log.exchanges AS e
SEMI JOIN wanted USING (connection, exchange_id)
QUALIFY row_number() OVER (PARTITION BY connection, exchange_id ORDER BY revision DESC, _partition, _offset) = 1
ORDER BY connection, exchange_id
