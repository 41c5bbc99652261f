-- purpose: the mix of sampling reasons among the judged exchanges before and after a change, because a different mix
--     can change the scores
-- grain: one row per sampling reason. share_*: of the period's judged exchanges
-- parameters: $project, $before_since, $before_until, $after_since, $after_until (event times; since inclusive, until
--     exclusive)
WITH judged AS (
    SELECT sampling_reason, exchanges AS before, 0 AS after
    FROM log.score_days($project, $before_since::TIMESTAMP, $before_until::TIMESTAMP)
    WHERE disposition = 'scored'
    UNION ALL
    SELECT sampling_reason, 0, exchanges
    FROM log.score_days($project, $after_since::TIMESTAMP, $after_until::TIMESTAMP)
    WHERE disposition = 'scored'
), counted AS (
    SELECT sampling_reason, sum(before)::BIGINT AS before, sum(after)::BIGINT AS after
    FROM judged
    GROUP BY sampling_reason
)
SELECT
    sampling_reason, before, after, round(before / nullif(sum(before) OVER (), 0), 3) AS share_before,
    round(after / nullif(sum(after) OVER (), 0), 3) AS share_after
FROM counted
ORDER BY before + after DESC, sampling_reason
