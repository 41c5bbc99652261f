-- purpose: human scores beside the judge's scores: each rater's newest score, with the stratum of the exchange
-- grain: one row per rater, exchange and review queue. queue: NULL for the general one, whose picks can stand for all; judge_score: mean of Tier 3, NULL if the judge gave none; weight: inverse of
--     the sampling probability of the score; class: anomaly, unsure or routine; is_sampled: whether the weight is above 1
--     (the strata are those of review_strata)
-- parameters: $project, $from (inclusive) and $to (exclusive) by event time of the exchange (NULL: unbounded), $times
--     (list of the event times of the scored exchanges, from score_times, to find their rows quickly; NULL: unknown)
WITH newest AS (
    SELECT subject_id AS score_id, reviewer AS rater, queue, arg_max(score, (occurred_at, _offset)) AS human_score
    FROM log.reviews
    WHERE kind = 'human_score' AND score IS NOT NULL AND project = $project
    GROUP BY subject_id, reviewer, queue
), candidates AS MATERIALIZED (
    -- Select the rows by one narrow column, so that wide columns are read only for them.
    SELECT rowid AS row
    FROM log.scores
    WHERE project = $project AND exchange_at IN (SELECT unnest($times::TIMESTAMP[]))
        AND ($from IS NULL OR exchange_at >= $from::TIMESTAMP) AND ($to IS NULL OR exchange_at < $to::TIMESTAMP)
    UNION ALL
    SELECT s.rowid AS row
    FROM log.scores AS s
    SEMI JOIN newest USING (score_id)
    WHERE $times IS NULL AND project = $project
        AND ($from IS NULL OR exchange_at >= $from::TIMESTAMP) AND ($to IS NULL OR exchange_at < $to::TIMESTAMP)
), current_scores AS (
    SELECT
        score_id, connection, session_id, exchange_at, tier3_score AS judge_score,
        1 / coalesce(sampling_probability, 1) AS weight,
        CASE
            WHEN anomaly THEN 'anomaly'
            WHEN log.is_unsure(tier2_score, tier2_5_alignment, tier2_flagged, tier3_score) THEN 'unsure'
            ELSE 'routine'
        END AS class
    FROM log.scores AS s
    SEMI JOIN candidates ON s.rowid = candidates.row
    QUALIFY row_number() OVER (PARTITION BY score_id ORDER BY revision DESC, _offset DESC) = 1
)
SELECT
    v.score_id, v.connection, v.session_id, v.exchange_at, n.rater, n.queue, n.human_score, v.judge_score, v.weight, v.class,
    v.weight > 1 AS is_sampled
FROM newest AS n
JOIN current_scores AS v ON n.score_id = v.score_id
ORDER BY v.exchange_at, v.score_id, n.rater, n.queue
