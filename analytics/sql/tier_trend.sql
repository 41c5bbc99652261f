-- purpose: the weekly means of each agent, where a judged exchange counts 1 / sampling_probability times in the
--     judged tiers, so that a change in sampling does not look like a change in quality
-- grain: one row per project, agent and ISO week with exchanges (event time, UTC). Tier 1 covers all exchanges, Tier
--     3 those that passed its gate
-- parameters: $project (NULL: all except anchor projects)
SELECT
    project, agent, date_trunc('week', day)::DATE AS week, sum(exchanges)::BIGINT AS exchanges,
    coalesce(sum(exchanges) FILTER (disposition = 'scored'), 0)::BIGINT AS judged,
    round(log.mean_of(sum(tier1_count), sum(tier1_sum)), 3) AS mean_tier1,
    round(log.mean_of(sum(weight * tier2_count), sum(weight * tier2_sum)), 3) AS mean_tier2,
    round(log.mean_of(sum(weight * tier2_5_count), sum(weight * tier2_5_sum)), 3) AS mean_tier2_5,
    round(log.mean_of(sum(weight * tier3_count), sum(weight * tier3_sum)), 3) AS mean_tier3,
    sum(anomalies)::BIGINT AS anomalies, coalesce(sum(exchanges) FILTER (simulated), 0)::BIGINT AS simulated
FROM log.score_days($project, TIMESTAMP '1970-01-01', TIMESTAMP '9999-12-31')
WHERE log.matches_project(project, $project)
GROUP BY project, agent, week
ORDER BY project, agent, week
