-- purpose: the newest revisions of the given exchanges, including withdrawn ones, from which the next revision
--     continues
-- grain: one row per exchange found, with the columns of its record
-- parameters: $exchanges (list of {connection, exchange_id})
WITH requested AS (
    SELECT unnest($exchanges::STRUCT(connection VARCHAR, exchange_id VARCHAR)[], recursive := true)
)
SELECT e.* EXCLUDE (_topic, _partition, _offset)
FROM log.exchanges AS e
SEMI JOIN requested USING (connection, exchange_id)
QUALIFY row_number() OVER (PARTITION BY connection, exchange_id ORDER BY revision DESC, _partition, _offset) = 1
ORDER BY connection, exchange_id
