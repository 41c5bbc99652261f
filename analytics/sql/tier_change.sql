-- purpose: the means of each agent before and after a given time, where a judged exchange counts 1 /
--     sampling_probability times in the judged tiers
-- grain: one row per project, agent and period with exchanges. later: the period from $since on, by event time in
--     UTC. Tier 1 covers all exchanges, Tier 3 those that passed its gate
-- parameters: $since, $project (NULL: all except anchor projects)
WITH days AS (
    SELECT false AS later, * FROM log.score_days($project, TIMESTAMP '1970-01-01', $since::TIMESTAMP)
    UNION ALL
    SELECT true, * FROM log.score_days($project, $since::TIMESTAMP, TIMESTAMP '9999-12-31')
)
SELECT
    project, agent, later, sum(exchanges)::BIGINT AS exchanges,
    coalesce(sum(exchanges) FILTER (disposition = 'scored'), 0)::BIGINT AS judged,
    round(log.mean_of(sum(tier1_count), sum(tier1_sum)), 3) AS mean_tier1,
    round(log.mean_of(sum(weight * tier2_count), sum(weight * tier2_sum)), 3) AS mean_tier2,
    round(log.mean_of(sum(weight * tier2_5_count), sum(weight * tier2_5_sum)), 3) AS mean_tier2_5,
    round(log.mean_of(sum(weight * tier3_count), sum(weight * tier3_sum)), 3) AS mean_tier3,
    sum(anomalies)::BIGINT AS anomalies, coalesce(sum(exchanges) FILTER (simulated), 0)::BIGINT AS simulated
FROM days
WHERE log.matches_project(project, $project)
GROUP BY project, agent, later
ORDER BY project, agent, later
