-- purpose: answers that have not ended: their events are stored, their exchanges are not
-- grain: one row per session with an open answer, the longest silent first. answers: number of open answers; last_at:
--     event time of their newest event
-- parameters: $project, $connection and $session (NULL: any), $since (event time of the first event, inclusive)
WITH started AS MATERIALIZED (
    SELECT connection, session_id, exchange_id, max(occurred_at) AS last_at
    FROM log.agent_events
    WHERE project = $project AND exchange_id IS NOT NULL AND occurred_at >= $since::TIMESTAMP
        AND ($connection IS NULL OR connection = $connection) AND ($session IS NULL OR session_id = $session)
    GROUP BY connection, session_id, exchange_id
), ended AS (
    -- A withdrawn exchange is not open, nor is one whose texts were deleted. An answer may have begun long before its newest event.
    SELECT connection, exchange_id FROM log.exchanges
    WHERE project = $project AND occurred_at >= $since::TIMESTAMP - INTERVAL 7 DAY AND ($session IS NULL OR session_id = $session)
    UNION ALL
    SELECT connection, exchange_id FROM log.scores
    WHERE project = $project AND exchange_at >= $since::TIMESTAMP - INTERVAL 7 DAY AND ($session IS NULL OR session_id = $session)
)
SELECT connection, session_id, count(*) AS answers, max(last_at) AS last_at
FROM started
ANTI JOIN ended USING (connection, exchange_id)
GROUP BY connection, session_id
ORDER BY max(last_at), connection, session_id
