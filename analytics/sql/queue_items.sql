-- purpose: the exchanges in a review queue, newest first: those added by hand, those of its rule, and those scored in it
-- grain: one row per exchange with its current score, $limit at most, without removed ones. source: hand, rule or
--     scored (neither of both any more); added_by: who added it by hand; reviewers: names of those who scored it in this
--     queue; agrees: largest difference of their points is at most 1, NULL with fewer than two
-- parameters: $project, $queue, $has_rule, and of the rule: $since and $until (inclusive and exclusive bounds of the time
--     of the exchange), $agent, $version, $tool, $tool_error (true: only with a failed call), $anomalies (true: only with
--     an anomaly), $reason (part of an anomaly reason or a flag), $failure (primary failure of the session's run), $tier,
--     $most (inclusive bound of the score of this tier; each NULL: any), $share (of the exchanges, by hash), $per_day
--     (maximum per UTC day, by hash); $limit
WITH marks AS (
    SELECT
        subject_id AS score_id, arg_max(status, (occurred_at, _offset)) AS status, arg_max(reviewer, (occurred_at, _offset)) AS added_by,
        max(exchange_at) AS exchange_at
    FROM log.reviews
    WHERE kind = 'queue_item' AND project = $project AND queue = $queue
    GROUP BY subject_id
), newest AS (
    SELECT
        subject_id AS score_id, reviewer, arg_max(score, (occurred_at, _offset)) AS points, max(exchange_at) AS exchange_at
    FROM log.reviews
    WHERE kind = 'human_score' AND score IS NOT NULL AND project = $project AND queue = $queue
    GROUP BY subject_id, reviewer
), labels AS (
    SELECT
        score_id, list(reviewer ORDER BY reviewer) AS reviewers, max(exchange_at) AS exchange_at,
        CASE WHEN count(*) > 1 THEN max(points) - min(points) <= 1 END AS agrees
    FROM newest
    GROUP BY score_id
), tagged AS (
    SELECT id
    FROM log.tagged_exchanges(
        $project, $since::TIMESTAMP, $until::TIMESTAMP, NULL, NULL, NULL, $version, $tool, $tool_error::BOOLEAN, NULL, NULL
    )
    WHERE $has_rule
), failed AS (
    SELECT connection, session_id FROM log.diagnoses
    WHERE $has_rule AND $failure IS NOT NULL AND project = $project AND closed_at >= $since::TIMESTAMP
        AND primary_failure_type = $failure
), matching AS MATERIALIZED (
    SELECT row, score_id, exchange_at, revision, _offset, md5_number_lower(concat_ws('/', $queue, score_id)) AS hash
    FROM log.listed_scores(
        $project, $since::TIMESTAMP, $until::TIMESTAMP, $agent, NULL, $anomalies::BOOLEAN, $reason, NULL, $tier, NULL, $most, 'at'
    )
    WHERE $has_rule AND hash / 18446744073709551616.0 < $share
        AND ($version IS NULL AND $tool IS NULL AND $tool_error IS NULL OR connection || '/' || exchange_id IN (SELECT id FROM tagged))
), later AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    WHERE project = $project AND revision > 0 AND exchange_at IN (SELECT exchange_at FROM matching)
    GROUP BY score_id
), ruled AS (
    SELECT m.score_id, m.exchange_at
    FROM matching AS m
    LEFT JOIN later AS l USING (score_id)
    WHERE (l.version IS NULL OR (m.revision, m._offset) = l.version)
        AND ($failure IS NULL OR m.row IN (
            SELECT s.rowid
            FROM log.scores AS s
            SEMI JOIN failed USING (connection, session_id)
            WHERE project = $project AND exchange_at >= $since::TIMESTAMP AND exchange_at < $until::TIMESTAMP
        ))
    QUALIFY row_number() OVER (PARTITION BY date_trunc('day', m.exchange_at) ORDER BY hash, m.score_id) <= $per_day
), items AS (
    SELECT
        score_id, coalesce(m.exchange_at, r.exchange_at, l.exchange_at) AS exchange_at, coalesce(l.reviewers, []) AS reviewers, l.agrees,
        CASE WHEN m.status = 'added' THEN 'hand' WHEN r.score_id IS NOT NULL THEN 'rule' ELSE 'scored' END AS source,
        CASE WHEN m.status = 'added' THEN m.added_by END AS added_by
    FROM (SELECT score_id FROM marks UNION SELECT score_id FROM ruled UNION SELECT score_id FROM labels)
    LEFT JOIN marks AS m USING (score_id)
    LEFT JOIN ruled AS r USING (score_id)
    LEFT JOIN labels AS l USING (score_id)
    WHERE m.status IS DISTINCT FROM 'removed'
)
SELECT s.score_id, s.connection, s.exchange_id, s.session_id, s.exchange_at, i.source, i.added_by, i.reviewers, i.agrees
FROM log.scores AS s
JOIN items AS i ON s.exchange_at = i.exchange_at AND s.score_id = i.score_id
WHERE s.project = $project
QUALIFY row_number() OVER (PARTITION BY s.score_id ORDER BY s.revision DESC, s._offset DESC) = 1
ORDER BY s.exchange_at DESC, s.score_id
LIMIT $limit
