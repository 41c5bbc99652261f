-- purpose: the sessions of the same agent that began right before and right after a session
-- grain: one row at most for each side, the earlier one first; began_at: its first record within the hours that are looked at
-- parameters: $project, $agent (NULL: records that name none), $connection, $session, $start (event time of the session's first record), $hours_before and $hours_after (that are looked at on either side; 0: none)
WITH near AS (
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
    FROM near
    WHERE (connection, session_id) <> ($connection, $session)
    GROUP BY connection, session_id
), sides AS (
    SELECT max((before_at, connection, session_id)) AS beside, false AS is_after
    FROM others
    WHERE $hours_before > 0 AND before_at IS NOT NULL AND (before_at, connection, session_id) < ($start::TIMESTAMP, $connection, $session)
    UNION ALL
    SELECT min((after_at, connection, session_id)) AS beside, true AS is_after
    FROM others
    WHERE $hours_after > 0 AND after_at IS NOT NULL AND (after_at, connection, session_id) > ($start::TIMESTAMP, $connection, $session)
)
SELECT is_after, beside[2] AS connection, beside[3] AS session_id, beside[1] AS began_at
FROM sides
WHERE beside IS NOT NULL
ORDER BY is_after
