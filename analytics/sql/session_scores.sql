-- purpose: the current scores of a session, newest exchange first
-- grain: one row per exchange
-- parameters: $project, $connection, $session, $limit
SELECT
    score_id, exchange_at, turn_number, disposition, tier1_score, tier2_score, tier2_5_alignment, tier3_score, anomaly, simulated
FROM log.scores
WHERE session_id = $session AND connection = $connection AND project = $project
QUALIFY row_number() OVER (PARTITION BY score_id ORDER BY revision DESC, _offset DESC) = 1
ORDER BY exchange_at DESC, coalesce(turn_number, -1) DESC, score_id DESC
LIMIT $limit
