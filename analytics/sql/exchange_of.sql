-- purpose: the exchange of a score, whole: one that is found at once among very many, because its time is known
-- grain: one row where there is one, with the columns of its record
-- parameters: $connection, $exchange (its id), $at (when it happened)
SELECT *
FROM exchanges
WHERE occurred_at = $at::TIMESTAMP AND connection = $connection AND exchange_id = $exchange
