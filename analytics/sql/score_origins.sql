-- purpose: by what the current scores were made: policy, rules, methodology and judge
-- grain: one row per policy digest, rule version, methodology and judge model (NULL where none was asked), simulated or not, the commonest first
-- parameters: $scores (a statement that reads the rows of `log.scores`; NULL: those of this database), $project (NULL for all)
WITH latest AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM query(coalesce($scores, 'FROM log.scores')) WHERE $project IS NULL OR project = $project GROUP BY score_id
)
SELECT
    policy_digest, rule_version, methodology, methodology_version, judge_model, simulated, count(*) AS scores,
    min(exchange_at) AS first_at, max(exchange_at) AS last_at
FROM query(coalesce($scores, 'FROM log.scores')) AS s
SEMI JOIN latest AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
GROUP BY policy_digest, rule_version, methodology, methodology_version, judge_model, simulated
ORDER BY scores DESC, policy_digest, rule_version, methodology, methodology_version, judge_model, simulated
