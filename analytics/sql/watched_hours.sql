-- purpose: the hourly sums of the current scores that the watch reads, with the origin of the scores. Baselines,
--     daily averages and the units of `audit.drift.change_detector` are sums of these
-- grain: one row per project, UTC hour of the sessions' last exchange of the day (six-hour blocks before
--     $coarse_until), whether the hour is at or after that of $until, agent (empty: not given), labels (JSON, empty without
--     labels), and origin of the scores. A unit is one session on one day with one agent: units, weight, total, and sums of their squares and products over the units; weights are 1 /
--     sampling_probability; tier1 covers all exchanges, other tiers those that have it; low, high: smallest and
--     largest mean of a unit
-- parameters: $projects (list), $since (inclusive) and $until (exclusive) in event time, $coarse_until (earlier days
--     are returned in six-hour blocks)
SELECT
    project, day::DATE AS day,
    CASE WHEN day < $coarse_until::DATE THEN time_bucket(INTERVAL 6 HOUR, hours.hour) ELSE hours.hour END AS hour,
    hour(hours.hour) >= hour($until::TIMESTAMP) AS later,
    agent, labels, methodology, methodology_version, methodology_digest, rule_version, nullif(judge_model, '') AS judge_model, simulated, policy_digest,
    max(last_at) AS last_at, sum(exchanges)::BIGINT AS exchanges, sum(anomalies)::BIGINT AS anomalies,
    sum(tier1_count)::BIGINT AS tier1_count, sum(tier1_sum) / 1e9 AS tier1_sum, sum(tier1_squares) / 1e18 AS tier1_squares,
    sum(tier1_units)::BIGINT AS tier1_units, sum(tier1_weight) / 1e6 AS tier1_weight, sum(tier1_total) / 1e9 AS tier1_total,
    sum(tier1_unit_squares) / 1e12 AS tier1_unit_squares, sum(tier1_unit_mixed) / 1e15 AS tier1_unit_mixed,
    sum(tier1_unit_totals) / 1e18 AS tier1_unit_totals, min(tier1_low) AS tier1_low, max(tier1_high) AS tier1_high,
    sum(tier2_count)::BIGINT AS tier2_count, sum(tier2_sum) / 1e9 AS tier2_sum, sum(tier2_squares) / 1e18 AS tier2_squares,
    sum(tier2_units)::BIGINT AS tier2_units, sum(tier2_weight) / 1e6 AS tier2_weight, sum(tier2_total) / 1e9 AS tier2_total,
    sum(tier2_unit_squares) / 1e12 AS tier2_unit_squares, sum(tier2_unit_mixed) / 1e15 AS tier2_unit_mixed,
    sum(tier2_unit_totals) / 1e18 AS tier2_unit_totals, min(tier2_low) AS tier2_low, max(tier2_high) AS tier2_high,
    sum(tier2_5_count)::BIGINT AS tier2_5_count, sum(tier2_5_sum) / 1e9 AS tier2_5_sum, sum(tier2_5_squares) / 1e18 AS tier2_5_squares,
    sum(tier2_5_units)::BIGINT AS tier2_5_units, sum(tier2_5_weight) / 1e6 AS tier2_5_weight, sum(tier2_5_total) / 1e9 AS tier2_5_total,
    sum(tier2_5_unit_squares) / 1e12 AS tier2_5_unit_squares, sum(tier2_5_unit_mixed) / 1e15 AS tier2_5_unit_mixed,
    sum(tier2_5_unit_totals) / 1e18 AS tier2_5_unit_totals, min(tier2_5_low) AS tier2_5_low, max(tier2_5_high) AS tier2_5_high,
    sum(tier3_count)::BIGINT AS tier3_count, sum(tier3_sum) / 1e9 AS tier3_sum, sum(tier3_squares) / 1e18 AS tier3_squares,
    sum(tier3_units)::BIGINT AS tier3_units, sum(tier3_weight) / 1e6 AS tier3_weight, sum(tier3_total) / 1e9 AS tier3_total,
    sum(tier3_unit_squares) / 1e12 AS tier3_unit_squares, sum(tier3_unit_mixed) / 1e15 AS tier3_unit_mixed,
    sum(tier3_unit_totals) / 1e18 AS tier3_unit_totals, min(tier3_low) AS tier3_low, max(tier3_high) AS tier3_high
FROM log.score_hours($projects::VARCHAR[], $since::TIMESTAMP, $until::TIMESTAMP) AS hours
GROUP BY ALL
ORDER BY ALL
