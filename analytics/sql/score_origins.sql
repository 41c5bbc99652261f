-- purpose: the policies, rules, methodologies and judges that produced the current scores
-- grain: one row per policy digest, rule version, methodology, judge model (NULL without a judge) and whether
--     simulated, the most frequent first
-- parameters: $scores (an SQL statement that returns rows of `log.scores`; NULL: this database), $project (NULL: all)
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
