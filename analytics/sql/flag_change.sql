-- purpose: the exchanges that each Tier 1 check flagged before and after a change
-- grain: one row per check that flagged any, the largest change of its share first. before, after: flagged exchanges;
--     all_before, all_after: exchanges with a score; share_*: flagged / all, NULL without exchanges
-- parameters: $project, $agent ('' for exchanges without an agent; NULL: any), $before_since, $before_until, $after_since, $after_until (event times; since inclusive, until
--     exclusive)
WITH current AS (
    SELECT is_after, tier1_flags
    FROM log.scores_around(
        $project, $before_since::TIMESTAMP, $before_until::TIMESTAMP, $after_since::TIMESTAMP, $after_until::TIMESTAMP
    )
    WHERE ($agent::VARCHAR IS NULL OR coalesce(agent, '') = $agent::VARCHAR)
), totals AS (
    SELECT count(*) FILTER (NOT is_after) AS all_before, count(*) FILTER (is_after) AS all_after
    FROM current
), flagged AS (
    SELECT flag, count(*) FILTER (NOT is_after) AS before, count(*) FILTER (is_after) AS after
    FROM (SELECT is_after, unnest(tier1_flags) AS flag FROM current)
    GROUP BY flag
)
SELECT
    flag, before, after, all_before, all_after, round(before / nullif(all_before, 0), 3) AS share_before,
    round(after / nullif(all_after, 0), 3) AS share_after
FROM flagged, totals
ORDER BY abs(coalesce(after / nullif(all_after, 0), 0) - coalesce(before / nullif(all_before, 0), 0)) DESC, flag
