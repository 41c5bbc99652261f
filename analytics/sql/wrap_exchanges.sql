-- purpose: the last five exchanges of each session, which contain its wrap-up
-- grain: one row per session: its texts, oldest first
-- parameters: $project (NULL: all), $projects (list; NULL: all), $limit (sessions, newest first); $from (inclusive) and $to (exclusive) of a
--     session's last exchange (NULL: unbounded); $after_at, $after_id: last_at and connection/session_id of the last
--     session of the previous page (NULL: first page)
WITH later_sessions AS (
    SELECT DISTINCT connection, session_id
    FROM log.exchanges
    WHERE (occurred_at > $after_at::TIMESTAMP OR occurred_at >= $to::TIMESTAMP) AND ($project IS NULL OR project = $project)
), recent AS (
    SELECT connection, session_id, occurred_at
    FROM log.exchanges
    WHERE occurred_at <= coalesce($after_at::TIMESTAMP, TIMESTAMP '9999-12-31') AND ($project IS NULL OR project = $project)
        AND ($projects IS NULL OR project IN (FROM unnest($projects::VARCHAR[])))
        AND ($from IS NULL OR occurred_at >= $from::TIMESTAMP) AND ($to IS NULL OR occurred_at < $to::TIMESTAMP)
    ORDER BY occurred_at DESC
    LIMIT 5000
), bound AS (
    -- One more session than requested, because the last one of the previous page may be included.
    SELECT
        CASE WHEN (SELECT count(*)
            FROM (SELECT DISTINCT connection, session_id FROM recent ANTI JOIN later_sessions USING (connection, session_id))) > $limit
            THEN min(occurred_at) ELSE coalesce($from::TIMESTAMP, TIMESTAMP '1970-01-01') END AS earliest
    FROM recent
), newest AS (
    SELECT connection, session_id, max(occurred_at) AS last_at
    FROM log.exchanges
    ANTI JOIN later_sessions USING (connection, session_id)
    WHERE ($project IS NULL OR project = $project) AND ($projects IS NULL OR project IN (FROM unnest($projects::VARCHAR[])))
        AND occurred_at >= (SELECT earliest FROM bound)
        AND occurred_at <= coalesce($after_at::TIMESTAMP, TIMESTAMP '9999-12-31') AND ($to IS NULL OR occurred_at < $to::TIMESTAMP)
    GROUP BY connection, session_id
    HAVING $after_at IS NULL OR last_at < $after_at::TIMESTAMP
        OR (last_at = $after_at::TIMESTAMP AND connection || '/' || session_id > $after_id)
    ORDER BY last_at DESC, connection || '/' || session_id
    LIMIT $limit
), session_counts AS (
    SELECT
        arg_max(project, _offset) AS project, connection, session_id, count(*) AS exchange_count, any_value(last_at) AS last_at,
        max(_offset, 5) AS offsets
    FROM log.current_exchanges
    JOIN newest USING (connection, session_id)
    WHERE $project IS NULL OR project = $project
    GROUP BY connection, session_id
), last_exchanges AS (
    SELECT * EXCLUDE (offsets), unnest(offsets) AS _offset
    FROM session_counts
)
SELECT
    w.project, w.connection, w.session_id, w.exchange_count, w.last_at,
    list(e.user_message || chr(10) || e.agent_response ORDER BY _offset) AS texts
FROM last_exchanges AS w
JOIN log.exchanges AS e USING (connection, session_id, _offset)
GROUP BY ALL
ORDER BY w.last_at DESC, any_value(w.connection || '/' || w.session_id)
