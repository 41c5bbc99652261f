-- purpose: what the watch reads: the current scores of each session and day, with what they were made with, from which baselines, daily averages and the units of `audit.sequential` add up
-- grain: one row a project, session, UTC day of the exchanges (event time), whether they came at the time of day of $until or later, and what the scores were made with; weights are 1 / sampling_probability; tier1 is of all exchanges, the others of those that have the tier
-- parameters: $projects (list), $since (inclusive) and $until (exclusive) in event time
WITH wanted AS (
    SELECT unnest($projects::VARCHAR[]) AS project
), latest AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    SEMI JOIN wanted USING (project)
    WHERE exchange_at >= $since::TIMESTAMP AND exchange_at < $until::TIMESTAMP
    GROUP BY score_id
), current AS (
    SELECT
        project, connection, session_id, exchange_at, anomaly, methodology, methodology_version, methodology_digest, rule_version,
        judge_model, simulated, policy_digest,
        round(1e6 / coalesce(sampling_probability, 1))::BIGINT AS weight, round(tier1_score * 1e9)::BIGINT AS tier1,
        CASE WHEN tier2_state = 'scored' THEN round(tier2_score * 1e9)::BIGINT END AS tier2,
        CASE WHEN tier2_5_state = 'scored' THEN round(tier2_5_alignment * 1e9)::BIGINT END AS tier2_5,
        CASE WHEN tier3_state = 'scored' THEN round(tier3_score * 1e9)::BIGINT END AS tier3
    FROM log.scores AS s
    SEMI JOIN latest AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
)
SELECT
    project, exchange_at::DATE AS day, exchange_at::TIME >= $until::TIMESTAMP::TIME AS later, connection, session_id,
    methodology, methodology_version, methodology_digest, rule_version, judge_model, simulated, policy_digest, max(exchange_at) AS last_at, count(*) AS exchanges,
    count(*) FILTER (anomaly) AS anomalies,
    count(tier1) AS tier1_count, coalesce(sum(tier1), 0) / 1e9 AS tier1_sum, coalesce(sum(tier1::HUGEINT * tier1), 0) / 1e18 AS tier1_squares,
    count(tier1)::DOUBLE AS tier1_weight, coalesce(sum(tier1), 0) / 1e9 AS tier1_total,
    count(tier2) AS tier2_count, coalesce(sum(tier2), 0) / 1e9 AS tier2_sum, coalesce(sum(tier2::HUGEINT * tier2), 0) / 1e18 AS tier2_squares,
    coalesce(sum(weight) FILTER (tier2 IS NOT NULL), 0) / 1e6 AS tier2_weight, coalesce(sum(weight::HUGEINT * tier2), 0) / 1e15 AS tier2_total,
    count(tier2_5) AS tier2_5_count, coalesce(sum(tier2_5), 0) / 1e9 AS tier2_5_sum, coalesce(sum(tier2_5::HUGEINT * tier2_5), 0) / 1e18 AS tier2_5_squares,
    coalesce(sum(weight) FILTER (tier2_5 IS NOT NULL), 0) / 1e6 AS tier2_5_weight, coalesce(sum(weight::HUGEINT * tier2_5), 0) / 1e15 AS tier2_5_total,
    count(tier3) AS tier3_count, coalesce(sum(tier3), 0) / 1e9 AS tier3_sum, coalesce(sum(tier3::HUGEINT * tier3), 0) / 1e18 AS tier3_squares,
    coalesce(sum(weight) FILTER (tier3 IS NOT NULL), 0) / 1e6 AS tier3_weight, coalesce(sum(weight::HUGEINT * tier3), 0) / 1e15 AS tier3_total
FROM current
GROUP BY ALL
ORDER BY ALL
