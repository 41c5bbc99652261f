-- purpose: reservations for judge calls without a judgement. Each is charged in full
-- grain: one row per reservation, with the columns of its record, oldest first
-- parameters: none
WITH settled AS (
    SELECT unnest(reservation_ids) AS reservation_id
    FROM judgements
)
SELECT r.*
FROM reservations AS r
ANTI JOIN settled USING (reservation_id)
ORDER BY reserved_at, reservation_id
