-- purpose: the reasons for anomalies, with their frequency
-- grain: one row per project, agent and reason, without the numbers in the reason. An exchange counts once for each
--     of its reasons
-- parameters: $project (NULL: all), $from (inclusive) and $to (exclusive) in event time (NULL: unbounded)
WITH anomalous AS (
    SELECT project, score_id, revision, _offset, agent, anomaly_reasons
    FROM log.scores
    WHERE len(anomaly_reasons) > 0 AND ($project IS NULL OR project = $project)
        AND ($from IS NULL OR exchange_at >= $from::TIMESTAMP) AND ($to IS NULL OR exchange_at < $to::TIMESTAMP)
), latest AS (
    SELECT project, score_id, max((revision, _offset)) AS version
    FROM log.scores
    SEMI JOIN anomalous USING (project, score_id)
    WHERE $project IS NULL OR project = $project
    GROUP BY project, score_id
), reasons AS (
    SELECT s.project, coalesce(agent, '') AS agent, unnest(anomaly_reasons) AS text
    FROM anomalous AS s
    SEMI JOIN latest AS l ON s.project = l.project AND s.score_id = l.score_id AND (s.revision, s._offset) = l.version
)
SELECT
    project, agent, regexp_replace(text, '(scored|align at) [0-9.e+-]+(?: of 5)?, (.*) is low$', '\1 \2') AS reason,
    count(*) AS exchanges
FROM reasons
GROUP BY ALL
ORDER BY project, agent, exchanges DESC, reason
