-- purpose: what judging a session has cost, by what was recorded of it
-- grain: one row for a session of which something was recorded; unknown costs count as nothing
-- parameters: $connection, $session
SELECT connection, session_id, coalesce(sum(round(cost_usd * 1e9)::BIGINT), 0)::BIGINT AS nano_usd
FROM judgements
WHERE connection = $connection AND session_id = $session
GROUP BY connection, session_id
