-- purpose: the states of the judged tiers in two scorings of the same exchanges
-- grain: one row per tier (2, 2.5, 3) and pair of states that occurs
-- parameters: $a, $b (SQL statements that return rows of `log.scores`, one per side; NULL: this database), $project
--     (NULL: all)
WITH latest_a AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM query(coalesce($a, 'FROM log.scores')) WHERE $project IS NULL OR project = $project GROUP BY score_id
), latest_b AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM query(coalesce($b, 'FROM log.scores')) WHERE $project IS NULL OR project = $project GROUP BY score_id
), side_a AS (
    SELECT score_id, tier2_state, tier2_5_state, tier3_state
    FROM query(coalesce($a, 'FROM log.scores')) AS s
    SEMI JOIN latest_a AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
), side_b AS (
    SELECT score_id, tier2_state, tier2_5_state, tier3_state
    FROM query(coalesce($b, 'FROM log.scores')) AS s
    SEMI JOIN latest_b AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
), pairs AS (
    SELECT a, b FROM side_a AS a JOIN side_b AS b USING (score_id)
), states AS (
    FROM pairs SELECT '2' AS tier, a.tier2_state AS state_a, b.tier2_state AS state_b
    UNION ALL FROM pairs SELECT '2.5', a.tier2_5_state, b.tier2_5_state
    UNION ALL FROM pairs SELECT '3', a.tier3_state, b.tier3_state
)
SELECT tier, state_a, state_b, count(*) AS exchanges
FROM states
GROUP BY ALL
ORDER BY tier, state_a, state_b
