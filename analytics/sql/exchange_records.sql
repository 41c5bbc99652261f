-- purpose: the current records of the given exchanges
-- grain: one row per exchange found, with the columns of its record
-- parameters: $exchanges (list of {connection, exchange_id})
WITH requested AS (
    SELECT unnest($exchanges::STRUCT(connection VARCHAR, exchange_id VARCHAR)[], recursive := true)
)
SELECT e.*
FROM exchanges AS e
SEMI JOIN requested USING (connection, exchange_id)
ORDER BY connection, session_id, occurred_at, exchange_id
