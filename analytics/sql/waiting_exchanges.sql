-- purpose: since when exchanges of some projects wait for their first score: what came after is judged in part, and what is judged late may be worse than what is judged soon
-- grain: one row per project in which any wait, by name; waits_since: event time of the oldest of them; exchanges: how many
-- parameters: $projects (list), $since (inclusive) and $until (exclusive) in event time
WITH wanted AS (
    SELECT unnest($projects::VARCHAR[]) AS project
)
SELECT project, min(occurred_at) AS waits_since, count(*) AS exchanges
FROM log.current_exchanges
SEMI JOIN wanted USING (project)
ANTI JOIN (
    SELECT connection, exchange_id
    FROM log.scores
    WHERE exchange_at >= $since::TIMESTAMP AND exchange_at < $until::TIMESTAMP
) USING (connection, exchange_id)
WHERE occurred_at >= $since::TIMESTAMP AND occurred_at < $until::TIMESTAMP
GROUP BY project
ORDER BY project
