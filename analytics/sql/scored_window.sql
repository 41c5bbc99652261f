-- purpose: whether a window of a project is known to have scores, which tells at once what else takes adding up its points
-- grain: one row where its last day has a score, or kept sums have one of its whole days; none where only the points can tell
-- parameters: $project, $from (inclusive) and $to (exclusive) of the time of the exchange
SELECT true AS is_scored
WHERE EXISTS (
        SELECT 1 FROM log.scores
        WHERE project = $project AND exchange_at < $to::TIMESTAMP
            AND exchange_at >= greatest($from::TIMESTAMP, $to::TIMESTAMP - INTERVAL 1 DAY)
    ) OR EXISTS (
        SELECT 1 FROM log.daily_scores
        WHERE project = $project AND day >= $from::TIMESTAMP AND day <= $to::TIMESTAMP - INTERVAL 1 DAY
    )
