-- purpose: the start of the comparison of a project's agent versions, and the share of sessions to read, so that the
--     number of exchanges stays bounded; and whether there are versions to compare
-- grain: one row, none for a period without exchanges. since: start of the period, or the first UTC day after which
--     fewer than $reach exchanges follow; one_in: one session in this many holds about $most exchanges since then (1:
--     all); is_versioned: whether a deployment has one of the labels, or one of the newest $most exchanges does
-- parameters: $project, $labels (names of the labels that hold versions), $since (inclusive), $until (exclusive),
--     $most and $reach (numbers of exchanges)
WITH days AS (
    SELECT day, exchanges, sum(exchanges) OVER (ORDER BY day DESC) - exchanges AS newer
    FROM log.exchange_days($project)
    WHERE day >= date_trunc('day', $since::TIMESTAMP) AND day < $until::TIMESTAMP
), begun AS (
    SELECT
        greatest($since::TIMESTAMP, min(day)) AS since, greatest(1, ceil(sum(exchanges) / $most))::BIGINT AS one_in,
        min(day) FILTER (newer < $most) AS recent
    FROM days
    WHERE newer < $reach
    HAVING count(*) > 0
)
SELECT
    since, one_in,
    EXISTS (FROM deployments WHERE project = $project AND occurred_at < $until::TIMESTAMP AND list_contains($labels::VARCHAR[], label))
    OR EXISTS (
        FROM log.current_exchanges
        WHERE project = $project AND occurred_at >= greatest(since, recent) AND occurred_at < $until::TIMESTAMP AND len(labels) > 0
            AND list_has_any(list_transform(labels, lambda item: item.name), $labels::VARCHAR[])
    ) AS is_versioned
FROM begun
