-- purpose: human scores beside the judge's scores: each rater's newest score, with the number of judged exchanges
--     that the pair represents
-- grain: one row per rater and exchange. judge_score: mean of Tier 3, NULL if the judge gave none; weight: inverse of
--     the sampling probability of the score; stratum: anomaly, unsure or routine; in_stratum: judged exchanges of the
--     project in the stratum, over the days that retention has
--     kept; judged: judged exchanges in all strata
-- parameters: $project, $from (inclusive) and $to (exclusive) by event time of the exchange (NULL: unbounded), $times
--     (list of the event times of the scored exchanges, from score_times, to find their rows quickly; NULL: unknown)
WITH retained AS (
    SELECT date_trunc('day', make_timestamp(max(next_position))) AS since
    FROM log.watermarks
    WHERE consumer = 'retention' AND topic = $project
), counted AS (
    SELECT
        coalesce(sum(rated_anomalies), 0)::BIGINT AS anomaly, coalesce(sum(rated_unsure), 0)::BIGINT AS unsure,
        coalesce(sum(rated_routine), 0)::BIGINT AS routine
    FROM log.score_days(
        $project, coalesce($from::TIMESTAMP, TIMESTAMP '1970-01-01'), coalesce($to::TIMESTAMP, TIMESTAMP '9999-12-31')
    ) AS d, retained
    WHERE d.day >= coalesce(retained.since, TIMESTAMP '1970-01-01')
), newest AS (
    SELECT subject_id AS score_id, reviewer AS rater, arg_max(score, (occurred_at, _offset)) AS human_score
    FROM log.reviews
    WHERE kind = 'human_score' AND score IS NOT NULL AND project = $project
    GROUP BY subject_id, reviewer
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
        END AS stratum
    FROM log.scores AS s
    SEMI JOIN candidates ON s.rowid = candidates.row
    QUALIFY row_number() OVER (PARTITION BY score_id ORDER BY revision DESC, _offset DESC) = 1
)
SELECT
    v.score_id, v.connection, v.session_id, n.rater, n.human_score, v.judge_score, v.weight, v.stratum,
    CASE v.stratum WHEN 'anomaly' THEN c.anomaly WHEN 'unsure' THEN c.unsure ELSE c.routine END AS in_stratum,
    c.anomaly + c.unsure + c.routine AS judged
FROM newest AS n
JOIN current_scores AS v ON n.score_id = v.score_id, counted AS c
ORDER BY v.exchange_at, v.score_id, n.rater
