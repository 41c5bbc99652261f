-- purpose: the exchanges whose scores differ most between two scorings: by the tier that differs most (a quarter of
--     the difference for Tier 3, whose scale is 1 to 5), then those whose anomaly differs
-- grain: one row per exchange whose scores or anomaly differ, with both scorings. moved: the difference, 0 to 1
-- parameters: $a, $b (SQL statements that return rows of `log.scores`, one per side; NULL: this database), $project
--     (NULL: all), $limit
WITH latest_a AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM query(coalesce($a, 'FROM log.scores')) WHERE $project IS NULL OR project = $project GROUP BY score_id
), latest_b AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM query(coalesce($b, 'FROM log.scores')) WHERE $project IS NULL OR project = $project GROUP BY score_id
), numbers_a AS (
    SELECT
        score_id, exchange_at, version, tier1_score AS tier1, anomaly, CASE WHEN tier2_state = 'scored' THEN tier2_score END AS tier2,
        CASE WHEN tier2_5_state = 'scored' THEN tier2_5_alignment END AS tier2_5,
        CASE WHEN tier3_state = 'scored' THEN tier3_score END AS tier3
    FROM query(coalesce($a, 'FROM log.scores')) AS s
    JOIN latest_a AS l USING (score_id) WHERE (s.revision, s._offset) = l.version
), numbers_b AS (
    SELECT
        score_id, version, tier1_score AS tier1, anomaly, CASE WHEN tier2_state = 'scored' THEN tier2_score END AS tier2,
        CASE WHEN tier2_5_state = 'scored' THEN tier2_5_alignment END AS tier2_5,
        CASE WHEN tier3_state = 'scored' THEN tier3_score END AS tier3
    FROM query(coalesce($b, 'FROM log.scores')) AS s
    JOIN latest_b AS l USING (score_id) WHERE (s.revision, s._offset) = l.version
), differences AS (
    SELECT
        score_id, a.version AS version_a, b.version AS version_b, a.exchange_at, a.anomaly <> b.anomaly AS flipped,
        round(greatest(abs(a.tier1 - b.tier1), abs(a.tier2 - b.tier2), abs(a.tier2_5 - b.tier2_5), abs(a.tier3 - b.tier3) / 4), 6) AS moved
    FROM numbers_a AS a JOIN numbers_b AS b USING (score_id)
    WHERE moved > 0 OR flipped
    ORDER BY moved DESC, flipped DESC, exchange_at, score_id
    LIMIT $limit
)
SELECT
    m.moved, a.project, a.connection, a.session_id, a.turn_number, a.exchange_id, m.exchange_at,
    a.tier1_score AS tier1_a, b.tier1_score AS tier1_b, a.tier1_flags AS tier1_flags_a, b.tier1_flags AS tier1_flags_b,
    a.tier2_state AS tier2_state_a, b.tier2_state AS tier2_state_b, a.tier2_score AS tier2_a, b.tier2_score AS tier2_b,
    a.tier2_dimensions AS tier2_dimensions_a, b.tier2_dimensions AS tier2_dimensions_b,
    a.tier2_5_state AS tier2_5_state_a, b.tier2_5_state AS tier2_5_state_b, a.tier2_5_alignment AS tier2_5_a,
    b.tier2_5_alignment AS tier2_5_b, a.tier2_5_reasoning AS tier2_5_reasoning_a, b.tier2_5_reasoning AS tier2_5_reasoning_b,
    a.tier3_state AS tier3_state_a, b.tier3_state AS tier3_state_b, a.tier3_score AS tier3_a, b.tier3_score AS tier3_b,
    a.tier3_dimensions AS tier3_dimensions_a, b.tier3_dimensions AS tier3_dimensions_b,
    a.anomaly AS anomaly_a, b.anomaly AS anomaly_b, a.anomaly_reasons AS anomaly_reasons_a, b.anomaly_reasons AS anomaly_reasons_b
FROM differences AS m
JOIN query(coalesce($a, 'FROM log.scores')) AS a ON a.score_id = m.score_id AND (a.revision, a._offset) = m.version_a
JOIN query(coalesce($b, 'FROM log.scores')) AS b ON b.score_id = m.score_id AND (b.revision, b._offset) = m.version_b
ORDER BY m.moved DESC, m.flipped DESC, m.exchange_at, m.score_id
