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
        judge_model, simulated, policy_digest, 1 / coalesce(sampling_probability, 1) AS weight, tier1_score AS tier1,
        CASE WHEN tier2_state = 'scored' THEN tier2_score END AS tier2,
        CASE WHEN tier2_5_state = 'scored' THEN tier2_5_alignment END AS tier2_5,
        CASE WHEN tier3_state = 'scored' THEN tier3_score END AS tier3
    FROM log.scores AS s
    SEMI JOIN latest AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
)
SELECT
    project, exchange_at::DATE AS day, exchange_at::TIME >= $until::TIMESTAMP::TIME AS later, connection, session_id, methodology, methodology_version, methodology_digest,
    rule_version, judge_model, simulated, policy_digest, max(exchange_at) AS last_at, count(*) AS exchanges,
    count(*) FILTER (anomaly) AS anomalies,
    count(tier1) AS tier1_count, coalesce(sum(tier1), 0) AS tier1_sum, coalesce(sum(tier1 * tier1), 0) AS tier1_squares,
    coalesce(sum(1.0) FILTER (tier1 IS NOT NULL), 0) AS tier1_weight, coalesce(sum(tier1), 0) AS tier1_total,
    count(tier2) AS tier2_count, coalesce(sum(tier2), 0) AS tier2_sum, coalesce(sum(tier2 * tier2), 0) AS tier2_squares,
    coalesce(sum(weight) FILTER (tier2 IS NOT NULL), 0) AS tier2_weight, coalesce(sum(weight * tier2), 0) AS tier2_total,
    count(tier2_5) AS tier2_5_count, coalesce(sum(tier2_5), 0) AS tier2_5_sum,
    coalesce(sum(tier2_5 * tier2_5), 0) AS tier2_5_squares,
    coalesce(sum(weight) FILTER (tier2_5 IS NOT NULL), 0) AS tier2_5_weight,
    coalesce(sum(weight * tier2_5), 0) AS tier2_5_total,
    count(tier3) AS tier3_count, coalesce(sum(tier3), 0) AS tier3_sum, coalesce(sum(tier3 * tier3), 0) AS tier3_squares,
    coalesce(sum(weight) FILTER (tier3 IS NOT NULL), 0) AS tier3_weight, coalesce(sum(weight * tier3), 0) AS tier3_total
FROM current
GROUP BY ALL
ORDER BY ALL
