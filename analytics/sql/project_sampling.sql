-- purpose: the sampling reasons and outcomes of a project's exchanges in a period
-- grain: one row per sampling reason and disposition, the most frequent first. share: of the period's exchanges;
--     means cover the scores that have the tier
-- parameters: $project, $from (inclusive) and $to (exclusive) in event time
SELECT
    sampling_reason, disposition, sum(exchanges)::BIGINT AS exchanges,
    round(sum(exchanges) / sum(sum(exchanges)) OVER (), 6) AS share, sum(anomalies)::BIGINT AS anomalies,
    round(log.mean_of(sum(tier1_count), sum(tier1_sum)), 3) AS tier1_mean,
    round(log.mean_of(sum(tier2_count), sum(tier2_sum)), 3) AS tier2_mean
FROM log.score_days($project, $from::TIMESTAMP, $to::TIMESTAMP)
WHERE project = $project
GROUP BY sampling_reason, disposition
ORDER BY exchanges DESC, sampling_reason, disposition
