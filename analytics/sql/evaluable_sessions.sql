-- purpose: finished sessions that can be evaluated: each has a diagnosis or a recorded end, and at least one exchange
--     or event. Anchors are excluded
-- grain: one row per session, the latest end first. ended_at: event time of the latest recorded end
-- parameters: $sessions (list of ids; NULL: any), $tags (list, of which an exchange or `tags` of session_start has at
--     least one; NULL: any), $project (NULL: all), $since (inclusive) and $until (exclusive) of the end (NULL:
--     unbounded), $limit
WITH ends AS (
    SELECT connection, session_id, project, closed_at FROM log.session_closings
    UNION ALL
    SELECT connection, session_id, project, closed_at FROM log.diagnoses
), finished AS (
    SELECT connection, session_id, max(closed_at) AS ended_at, arg_max(project, (closed_at, project)) AS project
    FROM ends
    WHERE $sessions IS NULL OR list_contains($sessions::VARCHAR[], session_id)
    GROUP BY connection, session_id
), matching AS (
    SELECT *
    FROM finished
    WHERE NOT starts_with(project, 'anchors.') AND ($project IS NULL OR project = $project)
        AND ($since IS NULL OR ended_at >= $since::TIMESTAMP) AND ($until IS NULL OR ended_at < $until::TIMESTAMP)
), tagged AS (
    SELECT connection, session_id
    FROM log.current_exchanges
    WHERE $tags IS NOT NULL AND list_has_any(tags, $tags::VARCHAR[])
    UNION ALL
    SELECT connection, session_id
    FROM log.agent_events
    WHERE $tags IS NOT NULL AND event = 'session_start'
        AND CASE WHEN json_valid(payload) THEN list_has_any(json_extract_string(payload, '$.tags[*]'), $tags::VARCHAR[]) END
), with_records AS (
    SELECT connection, session_id FROM log.exchanges
    UNION ALL
    SELECT connection, session_id FROM log.agent_events
)
SELECT connection, project, session_id, ended_at
FROM matching AS w
WHERE ($tags IS NULL OR EXISTS (SELECT 1 FROM tagged AS t WHERE t.connection = w.connection AND t.session_id = w.session_id))
    AND EXISTS (SELECT 1 FROM with_records AS h WHERE h.connection = w.connection AND h.session_id = w.session_id)
ORDER BY ended_at DESC, connection, session_id
LIMIT $limit
