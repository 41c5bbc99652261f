-- purpose: the recorded cost of judging the exchanges of a session
-- grain: one row if any judgement is recorded. Unknown costs count as 0
-- parameters: $connection, $session, $purposes (of the judgements to count; evaluations of the session are budgeted
--     separately)
SELECT connection, session_id, coalesce(sum(round(cost_usd * 1e9)::BIGINT), 0)::BIGINT AS nano_usd
FROM judgements
WHERE connection = $connection AND session_id = $session AND list_contains($purposes, purpose)
GROUP BY connection, session_id
