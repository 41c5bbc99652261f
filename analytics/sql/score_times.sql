-- purpose: the event times of the exchanges of the given scores, which never change
-- grain: one row per score found in the project: its id, exchange_at
-- parameters: $project, $scores (list of ids), $since (inclusive) and $until (exclusive) of the event times to search
--     (NULL: unbounded)
SELECT score_id, min(exchange_at) AS exchange_at
FROM log.scores
SEMI JOIN (SELECT unnest($scores::VARCHAR[]) AS score_id) USING (score_id)
WHERE project = $project AND ($since IS NULL OR exchange_at >= $since::TIMESTAMP) AND ($until IS NULL OR exchange_at < $until::TIMESTAMP)
GROUP BY score_id
ORDER BY score_id
