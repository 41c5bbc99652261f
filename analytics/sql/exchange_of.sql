-- purpose: the exchange of a score, found quickly because its time is known
-- grain: one row if the exchange exists, with the columns of its record
-- parameters: $connection, $exchange (its id), $at (its event time)
SELECT *
FROM exchanges
WHERE occurred_at = $at::TIMESTAMP AND connection = $connection AND exchange_id = $exchange
