-- purpose: what the watch reads: the current scores of each session and day, with what they were made with, from which baselines, daily averages and the units of `audit.sequential` add up
-- grain: one row a project, session, UTC day of the exchanges (event time), whether they came at the time of day of $until or later, and what the scores were made with; on a day of a project with more than 500 such rows the sessions that end within one hour are added up, under the hour's name instead of theirs; weights are 1 / sampling_probability; tier1 is of all exchanges, the others of those that have the tier
-- parameters: $projects (list), $since (inclusive) and $until (exclusive) in event time
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
        project, connection, session_id, exchange_at, anomaly, methodology, methodology_version, methodology_digest, rule_version,
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
        project, exchange_at::DATE AS day, exchange_at::TIME >= $until::TIMESTAMP::TIME AS later, connection, session_id,
        methodology, methodology_version, methodology_digest, rule_version, judge_model, simulated, policy_digest,
        max(exchange_at) AS last_at, count(*) AS exchanges, count(*) FILTER (anomaly) AS anomalies,
        count(tier1) AS tier1_count, coalesce(sum(tier1), 0) AS tier1_sum, coalesce(sum(tier1::HUGEINT * tier1), 0) AS tier1_squares,
        count(tier1) * 1000000 AS tier1_weight, coalesce(sum(tier1), 0) * 1000000 AS tier1_total,
        count(tier2) AS tier2_count, coalesce(sum(tier2), 0) AS tier2_sum, coalesce(sum(tier2::HUGEINT * tier2), 0) AS tier2_squares,
        coalesce(sum(weight) FILTER (tier2 IS NOT NULL), 0) AS tier2_weight, coalesce(sum(weight::HUGEINT * tier2), 0) AS tier2_total,
        count(tier2_5) AS tier2_5_count, coalesce(sum(tier2_5), 0) AS tier2_5_sum, coalesce(sum(tier2_5::HUGEINT * tier2_5), 0) AS tier2_5_squares,
        coalesce(sum(weight) FILTER (tier2_5 IS NOT NULL), 0) AS tier2_5_weight, coalesce(sum(weight::HUGEINT * tier2_5), 0) AS tier2_5_total,
        count(tier3) AS tier3_count, coalesce(sum(tier3), 0) AS tier3_sum, coalesce(sum(tier3::HUGEINT * tier3), 0) AS tier3_squares,
        coalesce(sum(weight) FILTER (tier3 IS NOT NULL), 0) AS tier3_weight, coalesce(sum(weight::HUGEINT * tier3), 0) AS tier3_total
    FROM current
    GROUP BY ALL
), placed AS (
    SELECT
        * EXCLUDE (connection, session_id),
        CASE WHEN count(*) OVER (PARTITION BY project, day) > 500
            THEN strftime(max(last_at) OVER (PARTITION BY project, day, connection, session_id), '%H') END AS hour,
        CASE WHEN hour IS NULL THEN connection ELSE '' END AS connection, coalesce(hour, session_id) AS session_id
    FROM sessions
)
SELECT
    project, day, later, connection, session_id, methodology, methodology_version, methodology_digest, rule_version, judge_model, simulated, policy_digest,
    max(last_at) AS last_at, sum(exchanges)::BIGINT AS exchanges, sum(anomalies)::BIGINT AS anomalies,
    sum(tier1_count)::BIGINT AS tier1_count, sum(tier1_sum) / 1e9 AS tier1_sum, sum(tier1_squares) / 1e18 AS tier1_squares,
    sum(tier1_weight) / 1e6 AS tier1_weight, sum(tier1_total) / 1e15 AS tier1_total,
    sum(tier2_count)::BIGINT AS tier2_count, sum(tier2_sum) / 1e9 AS tier2_sum, sum(tier2_squares) / 1e18 AS tier2_squares,
    sum(tier2_weight) / 1e6 AS tier2_weight, sum(tier2_total) / 1e15 AS tier2_total,
    sum(tier2_5_count)::BIGINT AS tier2_5_count, sum(tier2_5_sum) / 1e9 AS tier2_5_sum, sum(tier2_5_squares) / 1e18 AS tier2_5_squares,
    sum(tier2_5_weight) / 1e6 AS tier2_5_weight, sum(tier2_5_total) / 1e15 AS tier2_5_total,
    sum(tier3_count)::BIGINT AS tier3_count, sum(tier3_sum) / 1e9 AS tier3_sum, sum(tier3_squares) / 1e18 AS tier3_squares,
    sum(tier3_weight) / 1e6 AS tier3_weight, sum(tier3_total) / 1e15 AS tier3_total
FROM placed
GROUP BY ALL
ORDER BY ALL
