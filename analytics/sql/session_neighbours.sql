-- purpose: the exchanges of a session directly before and after one of them, within a week of it
-- grain: one row at most per side, the earlier one first, with the id of its score
-- parameters: $project, $connection, $session, $at (event time of the exchange), $turn (its number), $score (id of
--     its score)
WITH candidates AS (
    SELECT DISTINCT
        score_id, exchange_at, turn_number, (exchange_at, turn_number, score_id) > ($at::TIMESTAMP, $turn, $score) AS is_after
    FROM log.scores
    WHERE project = $project AND exchange_at BETWEEN $at::TIMESTAMP - INTERVAL 7 DAY AND $at::TIMESTAMP + INTERVAL 7 DAY
        AND session_id = $session AND connection = $connection AND score_id <> $score
), sides AS (
    (SELECT * FROM candidates WHERE NOT is_after ORDER BY exchange_at DESC, turn_number DESC, score_id DESC LIMIT 1)
    UNION ALL
    (SELECT * FROM candidates WHERE is_after ORDER BY exchange_at, turn_number, score_id LIMIT 1)
)
SELECT * FROM sides ORDER BY is_after
