-- purpose: the spending that counts toward the shared caps, per project and UTC day of the reservation
-- grain: one row per project and day. nano_usd: the costs of the questions reserved on the day, and the open
--     reservations. A question with reservations on two days counts on both
-- parameters: $from (first day), $as_of (exclusive end of the time of the reservation)
WITH reserved AS (
    SELECT reservation_id, project, reserved_at::DATE AS day, round(coalesce(amount_usd, 0) * 1e9)::BIGINT AS nano_usd
    FROM reservations
    WHERE reserved_at >= $from::DATE AND reserved_at < $as_of::TIMESTAMP
), settled AS (
    SELECT judgement_id, round(coalesce(cost_usd, 0) * 1e9)::BIGINT AS nano_usd, unnest(reservation_ids) AS reservation_id
    FROM judgements
    WHERE judged_at >= $from::DATE
), counted AS (
    SELECT DISTINCT r.project, r.day, s.judgement_id, s.nano_usd
    FROM settled AS s
    JOIN reserved AS r USING (reservation_id)
    UNION ALL
    SELECT r.project, r.day, NULL AS judgement_id, r.nano_usd
    FROM reserved AS r
    ANTI JOIN settled AS s USING (reservation_id)
)
SELECT project, day, sum(nano_usd)::BIGINT AS nano_usd
FROM counted
GROUP BY project, day
ORDER BY project, day
