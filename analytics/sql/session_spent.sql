-- purpose: what judging the exchanges of a session has cost, by what was recorded of them
-- grain: one row for a session of which something was recorded; unknown costs count as nothing
-- parameters: $connection, $session, $purposes (of the questions that count: evaluations of the session are paid for by themselves)
SELECT connection, session_id, coalesce(sum(round(cost_usd * 1e9)::BIGINT), 0)::BIGINT AS nano_usd
FROM judgements
WHERE connection = $connection AND session_id = $session AND list_contains($purposes, purpose)
GROUP BY connection, session_id
