-- purpose: how each agent does week by week, as if every exchange had been judged: a judged one counts 1 / sampling_probability times in the means of the judged tiers (once where it is always sampled), so that a change in what is sampled is no change in quality
-- grain: one row per project, agent and ISO week of the exchanges (event time, UTC), weeks without exchanges left out; Tier 1 is of all exchanges, Tier 3 of those its gate let through
-- parameters: $project (NULL for all but those of anchors)
SELECT
    project, agent, date_trunc('week', day)::DATE AS week, sum(exchanges)::BIGINT AS exchanges,
    coalesce(sum(exchanges) FILTER (disposition = 'scored'), 0)::BIGINT AS judged,
    round(log.mean_of(sum(tier1_count), sum(tier1_sum)), 3) AS mean_tier1,
    round(log.mean_of(sum(weight * tier2_count), sum(weight * tier2_sum)), 3) AS mean_tier2,
    round(log.mean_of(sum(weight * tier2_5_count), sum(weight * tier2_5_sum)), 3) AS mean_tier2_5,
    round(log.mean_of(sum(weight * tier3_count), sum(weight * tier3_sum)), 3) AS mean_tier3,
    sum(anomalies)::BIGINT AS anomalies, coalesce(sum(exchanges) FILTER (simulated), 0)::BIGINT AS simulated
FROM log.score_days($project, TIMESTAMP '1970-01-01', TIMESTAMP '9999-12-31')
WHERE log.is_asked(project, $project)
GROUP BY project, agent, week
ORDER BY project, agent, week
