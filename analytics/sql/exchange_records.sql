-- purpose: exchanges by their ids, whole, to make records of them again
-- grain: one row per exchange that is known, with the columns of its record
-- parameters: $exchanges (list of {connection, exchange_id})
WITH wanted AS (
    SELECT unnest($exchanges::STRUCT(connection VARCHAR, exchange_id VARCHAR)[], recursive := true)
)
SELECT e.*
FROM exchanges AS e
SEMI JOIN wanted USING (connection, exchange_id)
ORDER BY connection, session_id, occurred_at, exchange_id
