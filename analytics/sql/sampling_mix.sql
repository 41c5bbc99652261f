-- purpose: the sampling reasons and outcomes of exchanges, with their Tier 1 scores and anomalies
-- grain: one row per project, sampling reason and disposition. share: of the project's exchanges; weight: mean number
--     of exchanges that a judged one represents; means cover the scores that have the tier
-- parameters: $project (NULL: all except anchor projects)
SELECT
    project, sampling_reason, disposition, sum(exchanges)::BIGINT AS exchanges,
    round(sum(exchanges) / sum(sum(exchanges)) OVER (PARTITION BY project), 3) AS share,
    round(sum(weight * exchanges) / sum(exchanges), 3) AS weight,
    round(log.mean_of(sum(tier1_count), sum(tier1_sum)), 3) AS mean_tier1,
    round(log.mean_of(sum(tier2_count), sum(tier2_sum)), 3) AS mean_tier2,
    sum(anomalies)::BIGINT AS anomalies
FROM log.score_days($project, TIMESTAMP '1970-01-01', TIMESTAMP '9999-12-31')
WHERE log.matches_project(project, $project)
GROUP BY project, sampling_reason, disposition
ORDER BY project, exchanges DESC, sampling_reason, disposition
