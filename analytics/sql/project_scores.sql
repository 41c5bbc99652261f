-- purpose: the current scores of a project, newest exchange first, each with its newest human score and the time of
--     its first revision
-- grain: one row per exchange: every column of its score, created_at, human_score, human_comment, human_scored_at
-- parameters: $project (NULL: all), $from (inclusive) and $to (exclusive) in event time (NULL: unbounded), $since
--     (inclusive, by scored_at; NULL: all), $session (NULL: all), $agent ('' for unnamed; NULL: any), $version (of the
--     agent, in its label; NULL: any), $tool (only exchanges with a call of this tool; NULL: any), $tool_error (true: only
--     with a failed call, of that tool if any; NULL: any), $text (all its words must occur in question, answer or names
--     of tools; NULL: any), $blocks (list; the only blocks of the search index to read; NULL: all), $anomalies (true: only
--     anomalous), $limit; $after_at, $after_turn, $after_id: exchange_at, turn_number (-1 for none) and score_id of the
--     last row of the previous page (NULL: first page)
WITH days AS (
    SELECT day, sum(CASE WHEN $anomalies THEN anomalies ELSE exchanges END) AS matches
    FROM log.score_days(
        $project, coalesce($from::TIMESTAMP, TIMESTAMP '1970-01-01'), coalesce($to::TIMESTAMP, TIMESTAMP '9999-12-31')
    )
    WHERE $session IS NULL AND $since IS NULL AND $agent IS NULL
        AND NOT log.is_tagged(NULL, NULL, NULL, $version, $tool, $tool_error::BOOLEAN, $text::VARCHAR)
        AND ($after_at IS NULL OR day < date_trunc('day', $after_at::TIMESTAMP))
    GROUP BY day
), rescored AS (
    SELECT CASE WHEN $since IS NOT NULL THEN coalesce(min(exchange_at), TIMESTAMP '9999-12-31') END AS earliest
    FROM log.scores
    WHERE scored_at >= $since::TIMESTAMP AND ($project IS NULL OR project = $project)
), session_span AS (
    SELECT CASE WHEN $session IS NOT NULL THEN min(exchange_at) END AS earliest, max(exchange_at) AS latest
    FROM log.scores
    WHERE session_id = $session AND ($project IS NULL OR project = $project)
), bound AS (
    SELECT
        coalesce(any_value(r.earliest), max(day) FILTER (found_since >= $limit), any_value(s.earliest), TIMESTAMP '1970-01-01') AS earliest,
        coalesce(any_value(s.latest), TIMESTAMP '9999-12-31') AS latest
    FROM rescored AS r, session_span AS s
    LEFT JOIN (SELECT day, sum(matches) OVER (ORDER BY day DESC) AS found_since FROM days) ON true
), latest AS (
    -- Project, session, turn and time of an exchange never change, so filter by them before selecting the latest revision.
    -- Anomaly can change.
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    JOIN bound ON exchange_at >= earliest AND exchange_at <= latest
    WHERE ($project IS NULL OR project = $project)
        AND ($from IS NULL OR exchange_at >= $from::TIMESTAMP) AND ($to IS NULL OR exchange_at < $to::TIMESTAMP)
        AND ($session IS NULL OR session_id = $session)
        AND ($after_at IS NULL OR (exchange_at, coalesce(turn_number, -1), score_id) < ($after_at::TIMESTAMP, $after_turn, $after_id))
    GROUP BY score_id
), tagged AS (
    SELECT id
    FROM log.tagged_exchanges(
        $project, $from::TIMESTAMP, $to::TIMESTAMP, NULL, NULL, NULL, $version, $tool, $tool_error::BOOLEAN, $text::VARCHAR, $blocks::BIGINT[]
    )
), page AS (
    SELECT score_id, project, exchange_at, revision, _offset
    FROM log.scores AS s
    JOIN bound ON exchange_at >= earliest AND exchange_at <= latest
    SEMI JOIN latest AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
    WHERE ($project IS NULL OR project = $project) AND (NOT $anomalies OR anomaly) AND ($since IS NULL OR scored_at >= $since::TIMESTAMP)
        AND ($agent IS NULL OR coalesce(agent, '') = $agent)
        AND (
            NOT log.is_tagged(NULL, NULL, NULL, $version, $tool, $tool_error::BOOLEAN, $text::VARCHAR)
            OR connection || '/' || exchange_id IN (FROM tagged)
        )
    ORDER BY exchange_at DESC, coalesce(turn_number, -1) DESC, score_id DESC
    LIMIT $limit
), first_scored AS (
    SELECT score_id, arg_min(s.scored_at, (s.revision, s._offset)) AS created_at
    FROM log.scores AS s
    JOIN page USING (project, exchange_at, score_id)
    WHERE $project IS NULL OR project = $project
    GROUP BY score_id
), reviewed AS (
    SELECT
        subject_id AS score_id, arg_max(score, (occurred_at, _offset)) AS human_score,
        arg_max_null(comment, (occurred_at, _offset)) AS human_comment, max(occurred_at) AS human_scored_at
    FROM log.reviews AS r
    SEMI JOIN page AS p ON r.subject_id = p.score_id
    WHERE kind = 'human_score' AND score IS NOT NULL
    GROUP BY subject_id
)
SELECT s.* EXCLUDE (_topic, _partition, _offset), f.created_at, r.human_score, r.human_comment, r.human_scored_at
FROM log.scores AS s
JOIN page AS p ON s.exchange_at = p.exchange_at AND s.score_id = p.score_id AND s.revision = p.revision AND s._offset = p._offset
JOIN first_scored AS f ON s.score_id = f.score_id
LEFT JOIN reviewed AS r ON s.score_id = r.score_id
WHERE $project IS NULL OR s.project = $project
ORDER BY s.exchange_at DESC, coalesce(s.turn_number, -1) DESC, s.score_id DESC
