-- purpose: drift by the rule of consecutive days: three or more days with scores in a row whose averages are more
--     than one sigma (at least 0.01) from the latest baseline, all on the same side
-- grain: one row per project, tier and run of days, oldest first. days: the days of the run with their averages;
--     deviation: largest distance from the baseline's mean, in sigma; severity: critical beyond two sigma
-- parameters: $project (NULL: all except anchor projects), $as_of (exclusive end of the scores; later baselines are
--     ignored), $days (number of UTC days; the last may be incomplete)
WITH days AS (
    FROM log.score_days($project, log.first_day_of($as_of::TIMESTAMP, $days), $as_of::TIMESTAMP)
    WHERE log.matches_project(project, $project)
), tiers AS (
    SELECT project, day, 'tier1' AS tier, tier1_count AS n, tier1_sum AS total FROM days
    UNION ALL
    SELECT project, day, 'tier2' AS tier, tier2_count AS n, tier2_sum AS total FROM days
    UNION ALL
    SELECT project, day, 'tier2_5' AS tier, tier2_5_count AS n, tier2_5_sum AS total FROM days
    UNION ALL
    SELECT project, day, 'tier3' AS tier, tier3_count AS n, tier3_sum AS total FROM days
), averages AS (
    SELECT project, tier, day::DATE AS day, log.mean_of(sum(n), sum(total)) AS average
    FROM tiers
    WHERE n > 0
    GROUP BY project, tier, tiers.day
), latest AS (
    SELECT *
    FROM log.baselines
    WHERE log.matches_project(project, $project) AND computed_at <= $as_of::TIMESTAMP
    QUALIFY row_number() OVER (PARTITION BY project ORDER BY computed_at DESC, window_start, baseline_id) = 1
), baselines AS (
    SELECT project, baseline_id, 'tier1' AS tier, tier1.mean AS mean, greatest(tier1.stddev, 0.01) AS sigma FROM latest
    UNION ALL
    SELECT project, baseline_id, 'tier2' AS tier, tier2.mean AS mean, greatest(tier2.stddev, 0.01) AS sigma FROM latest
    UNION ALL
    SELECT project, baseline_id, 'tier2_5' AS tier, tier2_5.mean AS mean, greatest(tier2_5.stddev, 0.01) AS sigma FROM latest
    UNION ALL
    SELECT project, baseline_id, 'tier3' AS tier, tier3.mean AS mean, greatest(tier3.stddev, 0.01) AS sigma FROM latest
), distances AS (
    SELECT
        project, tier, day, average, baseline_id, (average - mean) / sigma AS distance,
        CASE WHEN distance > 1 THEN 'up' WHEN distance < -1 THEN 'down' END AS direction,
        row_number() OVER (PARTITION BY project, tier ORDER BY day)
            - row_number() OVER (PARTITION BY project, tier, direction ORDER BY day) AS run
    FROM averages
    JOIN baselines USING (project, tier)
    WHERE mean IS NOT NULL
)
SELECT
    project, tier, direction, CASE WHEN max(abs(distance)) > 2 THEN 'critical' ELSE 'warning' END AS severity,
    min(day) AS first_day, max(day) AS last_day, list({'day': day, 'average': average} ORDER BY day) AS days,
    max(abs(distance)) AS deviation, baseline_id
FROM distances
WHERE direction IS NOT NULL
GROUP BY project, tier, direction, run, baseline_id
HAVING count(*) >= 3
ORDER BY project, tier, first_day
