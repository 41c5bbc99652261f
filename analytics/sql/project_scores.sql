-- purpose: the current scores of a project, newest exchange first, each with the newest score a person gave it and with when it was first scored
-- grain: one row an exchange: every column of its score, created_at, human_score, human_comment, human_scored_at
-- parameters: $project (NULL for all), $from (inclusive) and $to (exclusive) in event time (NULL: no bound), $anomalies (true: only anomalous ones), $limit
WITH latest AS (
    -- An exchange keeps its project and its time, so they may be asked for first; whether it is anomalous can change.
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    WHERE ($project IS NULL OR project = $project)
        AND ($from IS NULL OR exchange_at >= $from::TIMESTAMP) AND ($to IS NULL OR exchange_at < $to::TIMESTAMP)
    GROUP BY score_id
), picked AS (
    SELECT score_id, revision, _offset
    FROM log.scores AS s
    SEMI JOIN latest AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
    WHERE NOT $anomalies OR anomaly
    ORDER BY exchange_at DESC, session_id, turn_number DESC, exchange_id, score_id
    LIMIT $limit
), first_scored AS (
    SELECT score_id, arg_min(scored_at, (revision, _offset)) AS created_at
    FROM log.scores
    SEMI JOIN picked USING (score_id)
    GROUP BY score_id
), reviewed AS (
    SELECT
        subject_id AS score_id, arg_max(score, (occurred_at, _offset)) AS human_score,
        arg_max_null(comment, (occurred_at, _offset)) AS human_comment, max(occurred_at) AS human_scored_at
    FROM log.reviews AS r
    SEMI JOIN picked AS p ON r.subject_id = p.score_id
    WHERE kind = 'human_score' AND score IS NOT NULL
    GROUP BY subject_id
)
SELECT s.* EXCLUDE (_topic, _partition, _offset), f.created_at, r.human_score, r.human_comment, r.human_scored_at
FROM log.scores AS s
SEMI JOIN picked AS p ON s.score_id = p.score_id AND s.revision = p.revision AND s._offset = p._offset
JOIN first_scored AS f ON s.score_id = f.score_id
LEFT JOIN reviewed AS r ON s.score_id = r.score_id
ORDER BY s.exchange_at DESC, s.session_id, s.turn_number DESC, s.exchange_id, s.score_id
