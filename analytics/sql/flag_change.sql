-- purpose: what the checks of Tier 1 found before a change and after it: how many exchanges each of them flagged
-- grain: one row per check that flagged any, those first whose share changed most; before, after: flagged exchanges; all_before, all_after: exchanges with a score; shares: of these, NULL where there are none
-- parameters: $project, $before_since, $before_until, $after_since, $after_until (in event time, each from inclusive to exclusive)
WITH current AS (
    SELECT is_after, tier1_flags
    FROM log.scores_around(
        $project, $before_since::TIMESTAMP, $before_until::TIMESTAMP, $after_since::TIMESTAMP, $after_until::TIMESTAMP
    )
), whole AS (
    SELECT count(*) FILTER (NOT is_after) AS all_before, count(*) FILTER (is_after) AS all_after
    FROM current
), flagged AS (
    SELECT flag, count(*) FILTER (NOT is_after) AS before, count(*) FILTER (is_after) AS after
    FROM (SELECT is_after, unnest(tier1_flags) AS flag FROM current)
    GROUP BY flag
)
SELECT
    flag, before, after, all_before, all_after, round(before / nullif(all_before, 0), 3) AS share_before, round(after / nullif(all_after, 0), 3) AS share_after
FROM flagged, whole
ORDER BY abs(coalesce(after / nullif(all_after, 0), 0) - coalesce(before / nullif(all_before, 0), 0)) DESC, flag
