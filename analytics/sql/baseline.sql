-- purpose: what is normal for a project: the tiers' distributions and the share of anomalies over the exchanges of a window of event time, whenever they were scored; weighted: a judged exchange counts 1 / sampling_probability times, so that a change in what is sampled is no change
-- grain: one row per project with scores in the window (NULL where a tier has none); stddev: of the population; effective_count: how many scores of equal weight would say as much; every exchange has a Tier 1 score, so that tier needs no weights
-- parameters: $project (NULL for all but those of anchors), $as_of (end of the window, exclusive), $days (UTC days of the window, of which the last one may not be over)
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
    log.weighted_deviation_of(sum(weight * tier2_5_count), sum(weight * tier2_5_sum), sum(weight * tier2_5_squares)) AS tier2_5_weighted_stddev,
    sum(weight * tier2_5_count) ** 2 / nullif(sum(weight ** 2 * tier2_5_count), 0) AS tier2_5_effective_count,
    log.mean_of(sum(weight * tier3_count), sum(weight * tier3_sum)) AS tier3_weighted_mean,
    log.weighted_deviation_of(sum(weight * tier3_count), sum(weight * tier3_sum), sum(weight * tier3_squares)) AS tier3_weighted_stddev,
    sum(weight * tier3_count) ** 2 / nullif(sum(weight ** 2 * tier3_count), 0) AS tier3_effective_count
FROM log.score_days($project, log.first_day_of($as_of::TIMESTAMP, $days), $as_of::TIMESTAMP)
WHERE log.is_asked(project, $project)
GROUP BY project
ORDER BY project
