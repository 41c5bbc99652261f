-- purpose: when the newest records of a project happened: what was said, and what was done
-- grain: one row per kind (event, exchange) of which the project has records
-- parameters: $project, $as_of (what happened then or later is left out)
WITH heard AS (
    SELECT 'exchange' AS kind, max(occurred_at) AS last_at
    FROM log.exchanges
    WHERE project = $project AND occurred_at < $as_of::TIMESTAMP
    UNION ALL
    SELECT 'event' AS kind, max(occurred_at) AS last_at
    FROM log.agent_events
    WHERE project = $project AND occurred_at < $as_of::TIMESTAMP
)
SELECT kind, last_at
FROM heard
WHERE last_at IS NOT NULL
ORDER BY kind
