-- purpose: the newest scores of a project's exchanges in a period, newest first: of some exchanges or sessions, or of agents
-- grain: one row per exchange, with the columns of its score
-- parameters: $project, $since (inclusive), $until (exclusive), $agents (list; NULL: any), $exchanges (list of {connection,
--     exchange_id}; NULL: any), $sessions (list of {connection, session_id}; NULL: any), $limit
WITH latest AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    WHERE project = $project AND exchange_at >= $since::TIMESTAMP AND exchange_at < $until::TIMESTAMP
    GROUP BY score_id
)
SELECT s.* EXCLUDE (_topic, _partition, _offset)
FROM log.scores AS s
JOIN latest AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
WHERE project = $project AND exchange_at >= $since::TIMESTAMP AND exchange_at < $until::TIMESTAMP
    AND ($agents IS NULL OR list_contains($agents::VARCHAR[], coalesce(agent, '')))
    AND ($exchanges IS NULL
        OR list_contains($exchanges::STRUCT(connection VARCHAR, exchange_id VARCHAR)[], {'connection': connection, 'exchange_id': exchange_id}))
    AND ($sessions IS NULL
        OR list_contains($sessions::STRUCT(connection VARCHAR, session_id VARCHAR)[], {'connection': connection, 'session_id': session_id}))
ORDER BY exchange_at DESC, s.score_id
LIMIT $limit
