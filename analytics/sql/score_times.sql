-- purpose: when the exchanges of some scores were, which never changes
-- grain: one row per score that the project has: its id, exchange_at
-- parameters: $project, $scores (list of ids), $since (inclusive) and $until (exclusive): looked for among the exchanges of this time alone (NULL: no bound)
SELECT score_id, min(exchange_at) AS exchange_at
FROM log.scores
SEMI JOIN (SELECT unnest($scores::VARCHAR[]) AS score_id) USING (score_id)
WHERE project = $project AND ($since IS NULL OR exchange_at >= $since::TIMESTAMP) AND ($until IS NULL OR exchange_at < $until::TIMESTAMP)
GROUP BY score_id
ORDER BY score_id
