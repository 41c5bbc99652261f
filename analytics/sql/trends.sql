-- purpose: how a project does day by day: means of the tiers, anomalies and exchanges by the day of the exchange, whenever it was scored
-- grain: one row per project and UTC day with scores, oldest first: the last $days of them up to $as_of, of which the last one may not be over
-- parameters: $project (NULL for all but those of anchors), $as_of (what happened then or later is left out), $days
SELECT
    project, day::DATE AS day,
    log.mean_of(sum(tier1_count), sum(tier1_sum)) AS tier1_mean,
    log.mean_of(sum(tier2_count), sum(tier2_sum)) AS tier2_mean,
    log.mean_of(sum(tier2_5_count), sum(tier2_5_sum)) AS tier2_5_mean,
    log.mean_of(sum(tier3_count), sum(tier3_sum)) AS tier3_mean,
    log.mean_of(sum(weight * tier2_count), sum(weight * tier2_sum)) AS tier2_weighted_mean,
    log.mean_of(sum(weight * tier2_5_count), sum(weight * tier2_5_sum)) AS tier2_5_weighted_mean,
    log.mean_of(sum(weight * tier3_count), sum(weight * tier3_sum)) AS tier3_weighted_mean,
    sum(anomalies)::BIGINT AS anomaly_count, sum(exchanges)::BIGINT AS exchange_count
FROM log.score_days($project, log.first_day_of($as_of::TIMESTAMP, $days), $as_of::TIMESTAMP)
WHERE log.is_asked(project, $project)
GROUP BY project, day
ORDER BY project, day
