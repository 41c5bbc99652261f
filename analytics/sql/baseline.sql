-- purpose: the normal values of a project: distributions of the tiers and the share of anomalies over a window of
--     event time. In the weighted columns a judged exchange counts 1 / sampling_probability times, so that a change
--     in sampling does not look like a change in quality
-- grain: one row per project with scores in the window; a tier's columns are NULL without scores of it. stddev:
--     population standard deviation; effective_count: effective sample size of the weighted scores. Tier 1 has no
--     weighted columns because it scores every exchange
-- parameters: $project (NULL: all except anchor projects), $as_of (exclusive end of the window), $days (length of the
--     window in UTC days; the last may be incomplete)
SELECT
    project, log.first_day_of($as_of::TIMESTAMP, $days) AS window_start, $as_of::TIMESTAMP AS window_end,
    sum(exchanges)::BIGINT AS exchange_count, sum(anomalies)::BIGINT AS anomaly_count,
    sum(anomalies) / sum(exchanges) AS anomaly_rate,
    log.mean_of(sum(tier1_count), sum(tier1_sum)) AS tier1_mean,
    log.deviation_of(sum(tier1_count), sum(tier1_sum), sum(tier1_squares)) AS tier1_stddev,
    sum(tier1_count)::BIGINT AS tier1_count,
    log.mean_of(sum(tier2_count), sum(tier2_sum)) AS tier2_mean,
    log.deviation_of(sum(tier2_count), sum(tier2_sum), sum(tier2_squares)) AS tier2_stddev,
    sum(tier2_count)::BIGINT AS tier2_count,
    log.mean_of(sum(tier2_5_count), sum(tier2_5_sum)) AS tier2_5_mean,
    log.deviation_of(sum(tier2_5_count), sum(tier2_5_sum), sum(tier2_5_squares)) AS tier2_5_stddev,
    sum(tier2_5_count)::BIGINT AS tier2_5_count,
    log.mean_of(sum(tier3_count), sum(tier3_sum)) AS tier3_mean,
    log.deviation_of(sum(tier3_count), sum(tier3_sum), sum(tier3_squares)) AS tier3_stddev,
    sum(tier3_count)::BIGINT AS tier3_count,
    log.mean_of(sum(weight * tier2_count), sum(weight * tier2_sum)) AS tier2_weighted_mean,
    log.weighted_deviation_of(sum(weight * tier2_count), sum(weight * tier2_sum), sum(weight * tier2_squares)) AS tier2_weighted_stddev,
    sum(weight * tier2_count) ** 2 / nullif(sum(weight ** 2 * tier2_count), 0) AS tier2_effective_count,
    log.mean_of(sum(weight * tier2_5_count), sum(weight * tier2_5_sum)) AS tier2_5_weighted_mean,
    log.weighted_deviation_of(sum(weight * tier2_5_count), sum(weight * tier2_5_sum),
        sum(weight * tier2_5_squares)) AS tier2_5_weighted_stddev,
    sum(weight * tier2_5_count) ** 2 / nullif(sum(weight ** 2 * tier2_5_count), 0) AS tier2_5_effective_count,
    log.mean_of(sum(weight * tier3_count), sum(weight * tier3_sum)) AS tier3_weighted_mean,
    log.weighted_deviation_of(sum(weight * tier3_count), sum(weight * tier3_sum), sum(weight * tier3_squares)) AS tier3_weighted_stddev,
    sum(weight * tier3_count) ** 2 / nullif(sum(weight ** 2 * tier3_count), 0) AS tier3_effective_count
FROM log.score_days($project, log.first_day_of($as_of::TIMESTAMP, $days), $as_of::TIMESTAMP)
WHERE log.matches_project(project, $project)
GROUP BY project
ORDER BY project
