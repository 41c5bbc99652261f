-- purpose: the exchanges that contributed most to a change of a tier's mean or of the anomaly rate: the farthest from
--     the expected value in the direction of the change, weighted by the number of exchanges that each represents
-- grain: one row per exchange with its score, its weight and the findings of the rules and the judge. moved: weight
--     times distance from the expected value
-- parameters: $project, $agent ('' for exchanges without an agent; NULL: any), $slice (name and value of a label of the score; NULL: any), $tier (tier1, tier2, tier2_5 or tier3; NULL: anomalies), $since (inclusive), $until
--     (exclusive), $expected, $direction (up, down; NULL: both), $limit
WITH latest AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    WHERE project = $project AND exchange_at >= $since::TIMESTAMP AND exchange_at < $until::TIMESTAMP
    GROUP BY score_id
), measured AS (
    SELECT
        s.score_id, l.version, exchange_at,
        log.weight_of($tier, sampling_probability) AS weight,
        log.score_of($tier, anomaly, tier1_score, tier2_state, tier2_score, tier2_5_state, tier2_5_alignment, tier3_state,
            tier3_score) AS score
    FROM log.scores AS s
    JOIN latest AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
    WHERE project = $project AND exchange_at >= $since::TIMESTAMP AND exchange_at < $until::TIMESTAMP
        AND ($agent::VARCHAR IS NULL OR coalesce(agent, '') = $agent::VARCHAR)
        AND ($slice::VARCHAR IS NULL OR list_contains([label.name || ' ' || label.value FOR label IN labels], $slice::VARCHAR))
), ranked AS (
    SELECT *, round(weight * CASE $direction WHEN 'up' THEN distance WHEN 'down' THEN -distance ELSE abs(distance) END, 6) AS moved
    FROM (SELECT *, score - $expected::DOUBLE AS distance FROM measured)
    WHERE CASE $direction WHEN 'up' THEN distance WHEN 'down' THEN -distance ELSE abs(distance) END > 0
    ORDER BY moved DESC, exchange_at DESC, score_id
    LIMIT $limit
)
SELECT
    s.score_id, connection, agent, session_id, turn_number, exchange_id, s.exchange_at, m.score, m.weight, m.moved,
    sampling_reason, tier1_flags, tier2_flag_reason, tier2_dimensions, tier2_5_reasoning, tier3_dimensions, anomaly_reasons
FROM log.scores AS s
JOIN ranked AS m ON s.exchange_at = m.exchange_at AND s.score_id = m.score_id AND (s.revision, s._offset) = m.version
WHERE project = $project
ORDER BY m.moved DESC, s.exchange_at DESC, s.score_id
