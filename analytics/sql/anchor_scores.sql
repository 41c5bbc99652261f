-- purpose: the judge's scores of a project's anchors, round by round
-- grain: one row per anchor and round, with its current score. round_at: start of the round; scores are on the scale
--     of their tier, NULL if the tier was not scored
-- parameters: $judged_as (the project under which the anchors are judged), $from (inclusive; NULL: unbounded)
WITH latest AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    WHERE connection = 'anchors' AND project = $judged_as AND ($from IS NULL OR exchange_at >= $from::TIMESTAMP)
    GROUP BY score_id
)
SELECT
    split_part(s.exchange_id, '@', 1) AS anchor_id, s.exchange_at AS round_at, s.disposition, s.tier2_score,
    s.tier2_5_alignment, s.tier3_score, s.methodology, s.methodology_version, s.methodology_digest, s.rule_version,
    s.judge_model, s.simulated, s.cost_usd
FROM log.scores AS s
SEMI JOIN latest AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
ORDER BY round_at, anchor_id
