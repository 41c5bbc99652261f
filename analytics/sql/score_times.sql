-- purpose: when the exchanges of some scores were, which never changes
-- grain: one row a score that the project has: its id, exchange_at
-- parameters: $project, $scores (list of ids)
SELECT score_id, min(exchange_at) AS exchange_at
FROM log.scores
SEMI JOIN (SELECT unnest($scores::VARCHAR[]) AS score_id) USING (score_id)
WHERE project = $project
GROUP BY score_id
ORDER BY score_id
