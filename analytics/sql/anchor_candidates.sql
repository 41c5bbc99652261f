-- purpose: exchanges that would make good anchors: judged, not an anchor yet, spread over the range of what the judge says, from bad to good; of a project with very many exchanges the days with the newest 100 000 that were judged
-- grain: one row per exchange: of each of $count parts of that range the one that comes first in an order that has nothing to do with what it says
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
