-- purpose: what of a period is in the lake only: the day from which the database has details, and the exchanges before it
-- grain: one row per project with such exchanges. border: midnight (UTC) from which details are in the database;
--     exchanges: the exchanges before it that are not
-- parameters: $project (NULL: all), $since (inclusive) and $until (exclusive) of the time of the exchange, rounded to UTC days
WITH borders AS (
    SELECT project, border FROM log.cold_borders() WHERE log.matches_project(project, $project)
), counted AS (
    SELECT project, border, sum(exchanges)::BIGINT AS exchanges
    FROM log.daily_exchanges
    JOIN borders USING (project)
    WHERE day < border AND day >= date_trunc('day', $since::TIMESTAMP) AND day < $until::TIMESTAMP
    GROUP BY project, border
), present AS (
    SELECT project, count(*) AS exchanges
    FROM log.current_exchanges
    JOIN borders USING (project)
    -- Constant bounds let the scan skip the hot days.
    WHERE occurred_at >= date_trunc('day', $since::TIMESTAMP) AND occurred_at < $until::TIMESTAMP + INTERVAL 1 DAY
        AND date_trunc('day', occurred_at) < $until::TIMESTAMP AND occurred_at < border
    GROUP BY project
)
SELECT project, border, counted.exchanges - coalesce(present.exchanges, 0) AS exchanges
FROM counted
LEFT JOIN present USING (project)
WHERE counted.exchanges > coalesce(present.exchanges, 0)
ORDER BY project
