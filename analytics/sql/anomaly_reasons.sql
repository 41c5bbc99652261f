-- purpose: why exchanges are anomalous, and how often
-- grain: one row a project, agent and reason, without the number that was scored; an exchange counts for each of its reasons
-- parameters: $project (NULL for all)
WITH latest AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    WHERE $project IS NULL OR project = $project
    GROUP BY score_id
), reasons AS (
    SELECT project, coalesce(agent, '') AS agent, unnest(anomaly_reasons) AS words
    FROM log.scores AS s
    SEMI JOIN latest AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
)
SELECT
    project, agent, regexp_replace(words, '(scored|align at) [0-9.e+-]+(?: of 5)?, (.*) is low$', '\1 \2') AS reason,
    count(*) AS exchanges
FROM reasons
GROUP BY ALL
ORDER BY project, agent, exchanges DESC, reason
