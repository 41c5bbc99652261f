-- purpose: where to begin with comparing the versions of a project's agents, and of how many sessions to read one, so that no more than about some exchanges are read; and whether it has any to compare
-- grain: one row, none for a time without exchanges; since: the beginning of the time, or of the first UTC day from which on there are fewer than $reach exchanges and those of a day; one_in: of how many sessions one has about $most of the exchanges since then, 1 for all; is_versioned: whether a deployment names one of the labels, or an exchange of the newest days with $most of them
-- parameters: $project, $labels (names of the labels that are versions), $since (inclusive), $until (exclusive), $most and $reach (exchanges)
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
            AND list_has_any(list_transform(labels, lambda one: one.name), $labels::VARCHAR[])
    ) AS is_versioned
FROM begun
