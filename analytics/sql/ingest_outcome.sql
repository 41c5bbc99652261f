-- purpose: the first decision on each of the given exchanges, to answer a sender that repeats a request
-- grain: one row per exchange with a decision. reason: of the sampling; disposition: of the first score, NULL before
--     it; cap: the reason of a tier that a cap left out; anomaly: by the first score, or by Tier 1 before it
-- parameters: $exchanges (list of {connection, exchange_id})
WITH requested AS (
    SELECT unnest($exchanges::STRUCT(connection VARCHAR, exchange_id VARCHAR)[], recursive := true)
), decisions AS (
    SELECT
        connection, exchange_id, true AS sampled, sampling_reason, tier1_score, tier1_flags, NULL AS score_id, NULL AS disposition, NULL AS cap,
        len(tier1_flags) > 0 AS anomaly, _offset
    FROM log.scoring_tasks
    SEMI JOIN requested USING (connection, exchange_id)
    WHERE revision = 0
    UNION ALL
    SELECT
        connection, exchange_id, disposition <> 'sampling_skip' AS sampled, sampling_reason, tier1_score, tier1_flags, score_id,
        disposition,
        CASE 'skipped_cost_cap'
            WHEN tier2_state THEN tier2_reason WHEN tier2_5_state THEN tier2_5_reason WHEN tier3_state THEN tier3_reason
        END AS cap,
        anomaly, _offset
    FROM log.scores
    SEMI JOIN requested USING (connection, exchange_id)
    WHERE revision = 0
)
SELECT
    connection, exchange_id, arg_min(score_id, _offset) AS score_id, bool_or(sampled) AS sampled,
    arg_min(sampling_reason, (score_id IS NULL, _offset)) AS reason,
    arg_min(tier1_score, (score_id IS NULL, _offset)) AS tier1_score,
    arg_min(tier1_flags, (score_id IS NULL, _offset)) AS tier1_flags,
    arg_min(disposition, _offset) AS disposition, arg_min(cap, _offset) AS cap, arg_min(anomaly, (score_id IS NULL, _offset)) AS anomaly
FROM decisions
GROUP BY connection, exchange_id
ORDER BY connection, exchange_id
