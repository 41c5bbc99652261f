-- purpose: sums of the judge's Tier 3 scores by session, from which the corrected mean is computed; each score counts
--     1 / sampling_probability times, so the sums stand for all exchanges
-- grain: one row per session with human scores, and one row for all other sessions, whose connection and session_id are
--     NULL. weight: sum of the weights; total: sum of weight times score; weight_squares, mixed, total_squares: sums over
--     the sessions of the squared weight, of weight times total, and of the squared total
-- parameters: $project, $from (inclusive) and $to (exclusive) by event time of the exchange (NULL: unbounded), $sessions
--     (list of {connection, session_id}: the sessions with human scores, each once)
WITH labelled AS (
    SELECT unnest($sessions::STRUCT(connection VARCHAR, session_id VARCHAR)[], recursive := true)
), later AS (
    -- Most scores have one version, so it is cheaper to look for scores with more.
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    WHERE revision > 0 AND project = $project
        AND ($from IS NULL OR exchange_at >= $from::TIMESTAMP) AND ($to IS NULL OR exchange_at < $to::TIMESTAMP)
    GROUP BY score_id
), sessions AS (
    SELECT
        connection, session_id, sum(1 / coalesce(sampling_probability, 1)) AS weight,
        sum(tier3_score / coalesce(sampling_probability, 1)) AS total
    FROM log.scores AS s
    LEFT JOIN later AS l USING (score_id)
    WHERE project = $project AND tier3_score IS NOT NULL
        AND ($from IS NULL OR exchange_at >= $from::TIMESTAMP) AND ($to IS NULL OR exchange_at < $to::TIMESTAMP)
        AND (l.version IS NULL OR (s.revision, s._offset) = l.version)
    GROUP BY connection, session_id
), marked AS (
    SELECT s.*, l.session_id IS NOT NULL AS is_labelled
    FROM sessions AS s
    LEFT JOIN labelled AS l USING (connection, session_id)
)
SELECT
    CASE WHEN is_labelled THEN connection END AS connection, CASE WHEN is_labelled THEN session_id END AS session_id,
    sum(weight) AS weight, sum(total) AS total, sum(weight ** 2) AS weight_squares, sum(weight * total) AS mixed,
    sum(total ** 2) AS total_squares
FROM marked
GROUP BY ALL
ORDER BY connection NULLS LAST, session_id
