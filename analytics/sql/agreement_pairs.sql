-- purpose: what people said beside what the judge says, of each person the newest, with how many judged exchanges each one stands for
-- grain: one row a rater and exchange; judge_score: the mean of Tier 3, NULL where the judge has none; stratum: anomaly, unsure or routine; in_stratum: judged exchanges of the project in it; judged: in all
-- parameters: $project, $from (inclusive) and $to (exclusive) in event time of the exchanges (NULL: no bound), $times (list: when the exchanges were that people have scored, as score_times answers, which makes them quick to find; NULL: not known)
WITH verdicts AS NOT MATERIALIZED (
    SELECT
        s.score_id, s.connection, s.session_id, s.exchange_at, s.revision, s._offset, s.tier3_score AS judge_score,
        CASE
            WHEN s.anomaly THEN 'anomaly'
            WHEN s.tier3_score BETWEEN 2.5 AND 3.5 OR s.tier2_score BETWEEN 0.4 AND 0.6 OR s.tier2_5_alignment BETWEEN 0.4 AND 0.6
                OR abs(s.tier2_score - (s.tier3_score - 1) / 4) >= 0.4 OR (s.tier2_flagged AND s.tier3_score >= 4)
                THEN 'unsure'
            ELSE 'routine'
        END AS stratum
    FROM log.scores AS s
    WHERE s.project = $project
        AND ($from IS NULL OR s.exchange_at >= $from::TIMESTAMP) AND ($to IS NULL OR s.exchange_at < $to::TIMESTAMP)
), later AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    WHERE project = $project AND revision > 0
        AND ($from IS NULL OR exchange_at >= $from::TIMESTAMP) AND ($to IS NULL OR exchange_at < $to::TIMESTAMP)
    GROUP BY score_id
), strata AS (
    SELECT stratum, count(*) AS in_stratum, sum(count(*)) OVER ()::BIGINT AS judged
    FROM verdicts AS v
    LEFT JOIN later AS l USING (score_id)
    WHERE judge_score IS NOT NULL AND (l.version IS NULL OR (v.revision, v._offset) = l.version)
    GROUP BY stratum
), newest AS (
    SELECT subject_id AS score_id, reviewer AS rater, arg_max(score, (occurred_at, _offset)) AS human_score
    FROM log.reviews
    WHERE kind = 'human_score' AND score IS NOT NULL AND project = $project
    GROUP BY subject_id, reviewer
), near AS MATERIALIZED (
    FROM verdicts WHERE $times IS NULL OR exchange_at IN (SELECT unnest($times::TIMESTAMP[]))
), looked AS (
    SELECT *
    FROM near
    SEMI JOIN newest USING (score_id)
    QUALIFY row_number() OVER (PARTITION BY score_id ORDER BY revision DESC, _offset DESC) = 1
)
SELECT
    v.score_id, v.connection, v.session_id, n.rater, n.human_score, v.judge_score, v.stratum,
    coalesce(t.in_stratum, 0) AS in_stratum, coalesce(t.judged, 0) AS judged
FROM newest AS n
JOIN looked AS v ON n.score_id = v.score_id
LEFT JOIN strata AS t ON v.stratum = t.stratum
ORDER BY v.exchange_at, v.score_id, n.rater
