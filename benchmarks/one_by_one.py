"""The answer of `watched_hours`, added up from the single scores in one statement: the kept sums are compared with it."""

ONE_BY_ONE = """
WITH wanted AS (
    SELECT unnest($projects::VARCHAR[]) AS project
), later AS (
    -- Most scores have one version, so it is cheaper to look for those that have more.
    SELECT project, score_id, max((revision, _offset)) AS version
    FROM log.scores
    SEMI JOIN wanted USING (project)
    WHERE revision > 0 AND exchange_at >= $since::TIMESTAMP AND exchange_at < $until::TIMESTAMP
    GROUP BY project, score_id
), current AS (
    SELECT
        project, connection, session_id, exchange_at, anomaly, coalesce(agent, '') AS agent,
        CASE WHEN len(labels) > 0 THEN to_json(map_from_entries(labels))::VARCHAR ELSE '' END AS labels, methodology, methodology_version, methodology_digest, rule_version,
        judge_model, simulated, policy_digest,
        round(1e6 / coalesce(sampling_probability, 1))::BIGINT AS weight, round(tier1_score * 1e9)::BIGINT AS tier1,
        CASE WHEN tier2_state = 'scored' THEN round(tier2_score * 1e9)::BIGINT END AS tier2,
        CASE WHEN tier2_5_state = 'scored' THEN round(tier2_5_alignment * 1e9)::BIGINT END AS tier2_5,
        CASE WHEN tier3_state = 'scored' THEN round(tier3_score * 1e9)::BIGINT END AS tier3
    FROM log.scores AS s
    SEMI JOIN wanted USING (project)
    LEFT JOIN later AS l USING (project, score_id)
    WHERE exchange_at >= $since::TIMESTAMP AND exchange_at < $until::TIMESTAMP
        AND (l.version IS NULL OR (s.revision, s._offset) = l.version)
), sessions AS (
    SELECT
        project, connection, session_id, exchange_at::DATE AS day, agent, methodology, methodology_version, methodology_digest, rule_version, judge_model, simulated,
        policy_digest, max(exchange_at) AS last_at, arg_max(labels, (exchange_at, labels)) AS labels, count(*) AS exchanges, count(*) FILTER (anomaly) AS anomalies,
        count(tier1) AS tier1_count, coalesce(sum(tier1), 0) AS tier1_sum, coalesce(sum(tier1::HUGEINT * tier1), 0) AS tier1_squares,
        nullif(count(tier1) * 1000000, 0)::HUGEINT AS tier1_weight, round(sum(1000000::HUGEINT * tier1) / 1e6)::HUGEINT AS tier1_total,
        count(tier2) AS tier2_count, coalesce(sum(tier2), 0) AS tier2_sum, coalesce(sum(tier2::HUGEINT * tier2), 0) AS tier2_squares,
        nullif(sum(weight) FILTER (tier2 IS NOT NULL), 0)::HUGEINT AS tier2_weight, round(sum(weight::HUGEINT * tier2) / 1e6)::HUGEINT AS tier2_total,
        count(tier2_5) AS tier2_5_count, coalesce(sum(tier2_5), 0) AS tier2_5_sum, coalesce(sum(tier2_5::HUGEINT * tier2_5), 0) AS tier2_5_squares,
        nullif(sum(weight) FILTER (tier2_5 IS NOT NULL), 0)::HUGEINT AS tier2_5_weight, round(sum(weight::HUGEINT * tier2_5) / 1e6)::HUGEINT AS tier2_5_total,
        count(tier3) AS tier3_count, coalesce(sum(tier3), 0) AS tier3_sum, coalesce(sum(tier3::HUGEINT * tier3), 0) AS tier3_squares,
        nullif(sum(weight) FILTER (tier3 IS NOT NULL), 0)::HUGEINT AS tier3_weight, round(sum(weight::HUGEINT * tier3) / 1e6)::HUGEINT AS tier3_total
    FROM current
    GROUP BY ALL
), placed AS (
    SELECT
        *, CASE WHEN day < $coarse_until::DATE THEN time_bucket(INTERVAL 6 HOUR, last_at) ELSE date_trunc('hour', last_at) END AS hour,
        hour(last_at) >= hour($until::TIMESTAMP) AS later
    FROM sessions
)
SELECT
    project, day, hour, later, agent, labels, methodology, methodology_version, methodology_digest, rule_version, judge_model, simulated, policy_digest,
    max(last_at) AS last_at, sum(exchanges)::BIGINT AS exchanges, sum(anomalies)::BIGINT AS anomalies,
    sum(tier1_count)::BIGINT AS tier1_count, sum(tier1_sum) / 1e9 AS tier1_sum, sum(tier1_squares) / 1e18 AS tier1_squares,
    count(tier1_weight) AS tier1_units, coalesce(sum(tier1_weight), 0) / 1e6 AS tier1_weight, coalesce(sum(tier1_total), 0) / 1e9 AS tier1_total,
    coalesce(sum(tier1_weight * tier1_weight), 0) / 1e12 AS tier1_unit_squares, coalesce(sum(tier1_weight * tier1_total), 0) / 1e15 AS tier1_unit_mixed,
    coalesce(sum(tier1_total * tier1_total), 0) / 1e18 AS tier1_unit_totals, min(tier1_total / tier1_weight) / 1e3 AS tier1_low, max(tier1_total / tier1_weight) / 1e3 AS tier1_high,
    sum(tier2_count)::BIGINT AS tier2_count, sum(tier2_sum) / 1e9 AS tier2_sum, sum(tier2_squares) / 1e18 AS tier2_squares,
    count(tier2_weight) AS tier2_units, coalesce(sum(tier2_weight), 0) / 1e6 AS tier2_weight, coalesce(sum(tier2_total), 0) / 1e9 AS tier2_total,
    coalesce(sum(tier2_weight * tier2_weight), 0) / 1e12 AS tier2_unit_squares, coalesce(sum(tier2_weight * tier2_total), 0) / 1e15 AS tier2_unit_mixed,
    coalesce(sum(tier2_total * tier2_total), 0) / 1e18 AS tier2_unit_totals, min(tier2_total / tier2_weight) / 1e3 AS tier2_low, max(tier2_total / tier2_weight) / 1e3 AS tier2_high,
    sum(tier2_5_count)::BIGINT AS tier2_5_count, sum(tier2_5_sum) / 1e9 AS tier2_5_sum, sum(tier2_5_squares) / 1e18 AS tier2_5_squares,
    count(tier2_5_weight) AS tier2_5_units, coalesce(sum(tier2_5_weight), 0) / 1e6 AS tier2_5_weight, coalesce(sum(tier2_5_total), 0) / 1e9 AS tier2_5_total,
    coalesce(sum(tier2_5_weight * tier2_5_weight), 0) / 1e12 AS tier2_5_unit_squares, coalesce(sum(tier2_5_weight * tier2_5_total), 0) / 1e15 AS tier2_5_unit_mixed,
    coalesce(sum(tier2_5_total * tier2_5_total), 0) / 1e18 AS tier2_5_unit_totals, min(tier2_5_total / tier2_5_weight) / 1e3 AS tier2_5_low, max(tier2_5_total / tier2_5_weight) / 1e3 AS tier2_5_high,
    sum(tier3_count)::BIGINT AS tier3_count, sum(tier3_sum) / 1e9 AS tier3_sum, sum(tier3_squares) / 1e18 AS tier3_squares,
    count(tier3_weight) AS tier3_units, coalesce(sum(tier3_weight), 0) / 1e6 AS tier3_weight, coalesce(sum(tier3_total), 0) / 1e9 AS tier3_total,
    coalesce(sum(tier3_weight * tier3_weight), 0) / 1e12 AS tier3_unit_squares, coalesce(sum(tier3_weight * tier3_total), 0) / 1e15 AS tier3_unit_mixed,
    coalesce(sum(tier3_total * tier3_total), 0) / 1e18 AS tier3_unit_totals, min(tier3_total / tier3_weight) / 1e3 AS tier3_low, max(tier3_total / tier3_weight) / 1e3 AS tier3_high
FROM placed
GROUP BY ALL
ORDER BY ALL
"""
