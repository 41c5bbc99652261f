-- purpose: the daily means of a project's tiers, with anomalies and exchanges, by the time of the exchange
-- grain: one row per project and UTC day with scores, oldest first
-- parameters: $project (NULL: all except anchor projects), $as_of (exclusive end), $days (number of UTC days; the
--     last may be incomplete)
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
WHERE log.matches_project(project, $project)
GROUP BY project, day
ORDER BY project, day
