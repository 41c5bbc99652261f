-- purpose: judged exchanges that would make good anchors: not anchors yet, and spread from the worst to the best
--     scores. If a project has very many exchanges, only the days with its newest 100,000 judged ones are searched
-- grain: one row per exchange: the judged exchanges are split into $count quantiles of quality, and one is drawn from
--     each by a hash of its id
-- parameters: $project, $count
WITH days AS (
    SELECT day, sum(sum(tier2_count)) OVER (ORDER BY day DESC) AS found_since
    FROM log.score_days($project, TIMESTAMP '1970-01-01', TIMESTAMP '9999-12-31')
    GROUP BY day
), bound AS (
    SELECT coalesce(max(day), TIMESTAMP '1970-01-01') AS earliest FROM days WHERE found_since >= 100000
), later AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    WHERE project = $project AND revision > 0 AND exchange_at >= (SELECT earliest FROM bound)
    GROUP BY score_id
), judged AS (
    SELECT
        s.connection, s.exchange_id, md5(s.score_id) AS drawn,
        list_avg([s.tier2_score, s.tier2_5_alignment, (s.tier3_score - 1) / 4]) AS quality
    FROM log.scores AS s
    LEFT JOIN later AS l ON s.score_id = l.score_id
    WHERE s.project = $project AND s.disposition = 'scored' AND s.tier2_state = 'scored' AND s.exchange_at >= (SELECT earliest FROM bound)
        AND (l.version IS NULL OR (s.revision, s._offset) = l.version)
), candidates AS (
    SELECT *, ntile($count) OVER (ORDER BY j.quality, j.drawn) AS part
    FROM judged AS j
    SEMI JOIN log.exchanges AS e ON j.connection = e.connection AND j.exchange_id = e.exchange_id
    ANTI JOIN (SELECT connection, exchange_id FROM anchors WHERE project = $project AND active) AS a
        ON j.connection = a.connection AND j.exchange_id = a.exchange_id
)
SELECT connection, exchange_id, quality
FROM candidates
QUALIFY row_number() OVER (PARTITION BY part ORDER BY drawn) = 1
ORDER BY quality, drawn
