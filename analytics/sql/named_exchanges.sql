-- purpose: the exchanges of a project with the given ids. An id is unique only within its connection
-- grain: one row per exchange: its connection and id
-- parameters: $project, $exchanges (list of ids), $connection (NULL: all)
SELECT connection, exchange_id
FROM log.current_exchanges
WHERE project = $project AND list_contains($exchanges::VARCHAR[], exchange_id) AND ($connection IS NULL OR connection = $connection)
ORDER BY exchange_id, connection
