-- purpose: the number of active anchors per project and the time of their last round
-- grain: one row per project with active anchors. last_round: start of the last round, NULL before the first
-- parameters: none
WITH active AS (
    SELECT project, count(*) AS anchors
    FROM anchors
    WHERE active
    GROUP BY project
), rounds AS (
    SELECT a.project, max(e.occurred_at) AS last_round
    FROM anchors AS a
    JOIN log.exchanges AS e ON e.connection = 'anchors' AND split_part(e.exchange_id, '@', 1) = a.anchor_id
    GROUP BY a.project
)
SELECT a.project, a.anchors, r.last_round
FROM active AS a
LEFT JOIN rounds AS r ON a.project = r.project
ORDER BY a.project
