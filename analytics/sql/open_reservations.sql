-- purpose: what was set aside for judge calls of which nothing was ever recorded: each is charged in full
-- grain: one row per reservation that no judgement settles, with the columns of its record, oldest first
-- parameters: none
WITH settled AS (
    SELECT unnest(reservation_ids) AS reservation_id
    FROM judgements
)
SELECT r.*
FROM reservations AS r
ANTI JOIN settled USING (reservation_id)
ORDER BY reserved_at, reservation_id
