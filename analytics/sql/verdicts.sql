-- purpose: the newest scores of a project with the judge of each tier, from which the agreement of judges is measured
-- grain: one row per exchange with a judged score, in its latest revision. tier2_score, tier2_5_score, tier3_score: NULL
--     if the tier is not scored; tier2_judge, tier2_5_judge, tier3_judge: name of the judge that answered, NULL if its
--     answer is in another database; yardstick: digest of the methodology, and version of the rules; weight: inverse of
--     the sampling probability. The 5,000 newest scores are read, or those at $times
-- parameters: $scores, $judgements (SQL statements that return rows of `log.scores` and `log.judgements`; NULL: this
--     database), $project, $from (inclusive) and $to (exclusive) by event time of the exchange (NULL: unbounded), $times
--     (list of event times; NULL: the newest)
WITH bound AS (
    SELECT min(exchange_at) AS earliest
    FROM (
        SELECT exchange_at
        FROM query(coalesce($scores, 'FROM log.scores'))
        WHERE project = $project AND disposition = 'scored'
            AND ($from IS NULL OR exchange_at >= $from::TIMESTAMP) AND ($to IS NULL OR exchange_at < $to::TIMESTAMP)
            AND ($times IS NULL OR exchange_at IN (SELECT unnest($times::TIMESTAMP[])))
        ORDER BY exchange_at DESC
        LIMIT 5000
    )
), current_scores AS (
    SELECT *
    FROM (
        SELECT
            score_id, connection, session_id, exchange_id, exchange_at, scored_at, evidence_digest, judgement_ids, judge_model,
            disposition, methodology_digest || ' ' || rule_version AS yardstick, 1 / coalesce(sampling_probability, 1) AS weight,
            CASE WHEN tier2_state = 'scored' THEN tier2_score END AS tier2_score,
            CASE WHEN tier2_5_state = 'scored' THEN tier2_5_alignment END AS tier2_5_score,
            CASE WHEN tier3_state = 'scored' THEN tier3_score END AS tier3_score
        FROM query(coalesce($scores, 'FROM log.scores'))
        WHERE project = $project AND exchange_at >= (SELECT earliest FROM bound) AND ($to IS NULL OR exchange_at < $to::TIMESTAMP)
            AND ($times IS NULL OR exchange_at IN (SELECT unnest($times::TIMESTAMP[])))
        QUALIFY row_number() OVER (PARTITION BY score_id ORDER BY revision DESC, _offset DESC) = 1
    )
    WHERE disposition = 'scored'
), answers AS (
    SELECT j.judgement_id, j.connection, j.subject_id, j.purpose, j.requested_model
    FROM query(coalesce($judgements, 'FROM log.judgements')) AS j
    SEMI JOIN current_scores AS s ON j.connection = s.connection AND j.subject_id = s.exchange_id
    WHERE j.outcome = 'answered' AND j.judged_at <= (SELECT max(scored_at) FROM current_scores)
        AND j.judged_at >= (SELECT earliest FROM bound)
), judges AS (
    SELECT
        s.score_id, max(a.requested_model) FILTER (a.purpose IN ('tier2', 'tiers_2_and_3')) AS tier2_judge,
        max(a.requested_model) FILTER (a.purpose = 'tier2_5') AS tier2_5_judge,
        max(a.requested_model) FILTER (a.purpose IN ('tier3', 'tiers_2_and_3')) AS tier3_judge
    FROM current_scores AS s
    JOIN answers AS a ON a.connection = s.connection AND a.subject_id = s.exchange_id AND list_contains(s.judgement_ids, a.judgement_id)
    GROUP BY s.score_id
)
SELECT
    s.score_id, s.connection, s.session_id, s.exchange_id, s.exchange_at, s.evidence_digest, s.judge_model, s.yardstick,
    s.weight, s.tier2_score, s.tier2_5_score, s.tier3_score, j.tier2_judge, j.tier2_5_judge, j.tier3_judge
FROM current_scores AS s
LEFT JOIN judges AS j ON s.score_id = j.score_id
ORDER BY s.exchange_at, s.score_id
