-- purpose: the oldest exchange of each project that waits for its first score or for a batch. After it, scores are incomplete, and
--     exchanges that are judged late may be worse than those judged early
-- grain: one row per project with waiting exchanges, by name. waits_since: event time of the oldest; exchanges: their
--     number
-- parameters: $projects (list), $since (inclusive) and $until (exclusive) in event time
WITH requested AS (
    SELECT unnest($projects::VARCHAR[]) AS project
)
SELECT project, min(occurred_at) AS waits_since, count(*) AS exchanges
FROM log.current_exchanges
SEMI JOIN requested USING (project)
ANTI JOIN (
    SELECT connection, exchange_id
    FROM log.scores
    WHERE exchange_at >= $since::TIMESTAMP AND exchange_at < $until::TIMESTAMP
    GROUP BY connection, exchange_id
    HAVING NOT arg_max(list_contains([tier2_reason, tier2_5_reason, tier3_reason], 'awaiting_batch'), revision)
) USING (connection, exchange_id)
WHERE occurred_at >= $since::TIMESTAMP AND occurred_at < $until::TIMESTAMP
GROUP BY project
ORDER BY project
