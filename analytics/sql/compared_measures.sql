-- purpose: the differences between two scorings of the same exchanges, per measure that both have, with the sums for
--     a confidence interval of the mean difference, clustered by session
-- grain: one row per project and measure. tier: 1, 2, 2.5, 3, anomaly (0 or 1) or cost (USD, only of exchanges that
--     neither side left unscored); dimension: '' for the tier itself; squared_shares, leverage, squared_leverage:
--     sums over the sessions' shares of the pairs; spread: sum of the sessions' squared residuals
-- parameters: $a, $b (SQL statements that return rows of `log.scores`, one per side; NULL: this database), $project
--     (NULL: all)
WITH latest_a AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM query(coalesce($a, 'FROM log.scores')) WHERE $project IS NULL OR project = $project GROUP BY score_id
), latest_b AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM query(coalesce($b, 'FROM log.scores')) WHERE $project IS NULL OR project = $project GROUP BY score_id
), side_a AS (
    SELECT
        score_id, project, (connection, session_id) AS session, tier1_score, anomaly,
        CASE WHEN disposition <> 'unscored' THEN cost_usd END AS cost_usd,
        CASE WHEN tier2_state = 'scored' THEN tier2_score END AS tier2,
        CASE WHEN tier2_state = 'scored' THEN list_transform(tier2_dimensions,
            lambda item: (item.dimension, item.score)) END AS dimensions2,
        CASE WHEN tier2_5_state = 'scored' THEN tier2_5_alignment END AS alignment,
        tier2_5_sycophancy AS sycophancy, tier2_5_advocacy_suppression AS suppression,
        CASE WHEN tier3_state = 'scored' THEN tier3_score END AS tier3,
        CASE WHEN tier3_state = 'scored' THEN list_transform(tier3_dimensions, lambda item: (item.dimension, item.score)) END AS dimensions3
    FROM query(coalesce($a, 'FROM log.scores')) AS s
    SEMI JOIN latest_a AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
), side_b AS (
    SELECT
        score_id, project, (connection, session_id) AS session, tier1_score, anomaly,
        CASE WHEN disposition <> 'unscored' THEN cost_usd END AS cost_usd,
        CASE WHEN tier2_state = 'scored' THEN tier2_score END AS tier2,
        CASE WHEN tier2_state = 'scored' THEN list_transform(tier2_dimensions,
            lambda item: (item.dimension, item.score)) END AS dimensions2,
        CASE WHEN tier2_5_state = 'scored' THEN tier2_5_alignment END AS alignment,
        tier2_5_sycophancy AS sycophancy, tier2_5_advocacy_suppression AS suppression,
        CASE WHEN tier3_state = 'scored' THEN tier3_score END AS tier3,
        CASE WHEN tier3_state = 'scored' THEN list_transform(tier3_dimensions, lambda item: (item.dimension, item.score)) END AS dimensions3
    FROM query(coalesce($b, 'FROM log.scores')) AS s
    SEMI JOIN latest_b AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
), pairs AS (
    SELECT a, b FROM side_a AS a JOIN side_b AS b USING (score_id)
), measured AS (
    FROM pairs SELECT a.project, a.session, '1' AS tier, '' AS dimension, a.tier1_score AS a, b.tier1_score AS b
    UNION ALL FROM pairs SELECT a.project, a.session, '2', '', a.tier2, b.tier2
    UNION ALL FROM pairs SELECT a.project, a.session, '2.5', '', a.alignment, b.alignment
    UNION ALL FROM pairs SELECT a.project, a.session, '2.5', 'sycophancy', a.sycophancy::INT, b.sycophancy::INT
    UNION ALL FROM pairs SELECT a.project, a.session, '2.5', 'advocacy_suppression', a.suppression::INT, b.suppression::INT
    UNION ALL FROM pairs SELECT a.project, a.session, '3', '', a.tier3, b.tier3
    UNION ALL FROM pairs SELECT a.project, a.session, 'anomaly', '', a.anomaly::INT, b.anomaly::INT
    UNION ALL FROM pairs SELECT a.project, a.session, 'cost', '', a.cost_usd, b.cost_usd
    UNION ALL
    SELECT project, session, tier, pair_a[1], pair_a[2], list_filter(pairs_b, lambda pair_b: pair_b[1] = pair_a[1])[1][2]
    FROM (
        FROM pairs SELECT a.project, a.session, '2' AS tier, unnest(a.dimensions2) AS pair_a, b.dimensions2 AS pairs_b
        UNION ALL FROM pairs SELECT a.project, a.session, '3', unnest(a.dimensions3), b.dimensions3
    )
), sessions AS (
    SELECT
        project, tier, dimension, session, count(*) AS pairs, sum(a) AS sum_a, sum(b) AS sum_b, sum(b - a) AS difference,
        count(*) FILTER (a <> b) AS changed
    FROM measured
    WHERE a IS NOT NULL AND b IS NOT NULL
    GROUP BY ALL
), shares AS (
    SELECT
        *, pairs / sum(pairs) OVER measure AS share,
        difference - pairs * (sum(difference) OVER measure / sum(pairs) OVER measure) AS residual
    FROM sessions
    WINDOW measure AS (PARTITION BY project, tier, dimension)
)
SELECT
    project, tier, dimension, sum(pairs)::BIGINT AS pairs, count(*) AS clusters, sum(changed)::BIGINT AS changed,
    sum(sum_a) / sum(pairs) AS mean_a, sum(sum_b) / sum(pairs) AS mean_b, sum(difference) / sum(pairs) AS mean,
    sum(share ** 2) AS squared_shares, coalesce(sum(share ** 2 / nullif(1 - share, 0)), 0) AS leverage,
    coalesce(sum((share ** 2 / nullif(1 - share, 0)) ** 2), 0) AS squared_leverage,
    coalesce(sum(residual ** 2 / nullif(1 - share, 0)), 0) AS spread
FROM shares
GROUP BY ALL
ORDER BY project, tier, dimension
