-- purpose: the sessions of the same agent that began directly before and after a session
-- grain: one row at most per side, the earlier one first. began_at: its first record within the hours searched
-- parameters: $project, $agent (NULL: records without an agent), $connection, $session, $start (event time of the
--     session's first record), $hours_before and $hours_after (hours to search on either side; 0: none)
WITH nearby AS (
    SELECT connection, session_id, occurred_at
    FROM log.exchanges
    WHERE occurred_at BETWEEN $start::TIMESTAMP - to_hours($hours_before::BIGINT) AND $start::TIMESTAMP + to_hours($hours_after::BIGINT)
        AND project = $project AND agent IS NOT DISTINCT FROM $agent
    UNION ALL
    SELECT connection, session_id, occurred_at
    FROM log.agent_events
    WHERE occurred_at BETWEEN $start::TIMESTAMP - to_hours($hours_before::BIGINT) AND $start::TIMESTAMP + to_hours($hours_after::BIGINT)
        AND project = $project AND agent IS NOT DISTINCT FROM $agent
), others AS (
    SELECT
        connection, session_id, min(occurred_at) FILTER (occurred_at <= $start::TIMESTAMP) AS before_at,
        min(occurred_at) FILTER (occurred_at >= $start::TIMESTAMP) AS after_at
    FROM nearby
    WHERE (connection, session_id) <> ($connection, $session)
    GROUP BY connection, session_id
), sides AS (
    SELECT max((before_at, connection, session_id)) AS neighbour, false AS is_after
    FROM others
    WHERE $hours_before > 0 AND before_at IS NOT NULL AND (before_at, connection, session_id) < ($start::TIMESTAMP, $connection, $session)
    UNION ALL
    SELECT min((after_at, connection, session_id)) AS neighbour, true AS is_after
    FROM others
    WHERE $hours_after > 0 AND after_at IS NOT NULL AND (after_at, connection, session_id) > ($start::TIMESTAMP, $connection, $session)
)
SELECT is_after, neighbour[2] AS connection, neighbour[3] AS session_id, neighbour[1] AS began_at
FROM sides
WHERE neighbour IS NOT NULL
ORDER BY is_after
