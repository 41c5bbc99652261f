-- purpose: the event time of a project's newest exchange and newest event
-- grain: one row per kind (event, exchange) that has records
-- parameters: $project, $as_of (exclusive end)
WITH newest AS (
    SELECT 'exchange' AS kind, max(occurred_at) AS last_at
    FROM log.exchanges
    WHERE project = $project AND occurred_at < $as_of::TIMESTAMP
    UNION ALL
    SELECT 'event' AS kind, max(occurred_at) AS last_at
    FROM log.agent_events
    WHERE project = $project AND occurred_at < $as_of::TIMESTAMP
)
SELECT kind, last_at
FROM newest
WHERE last_at IS NOT NULL
ORDER BY kind
