-- purpose: the exchanges that wait for this rater's review, and those that the rater has scored, by stratum
-- grain: one row per stratum with exchanges: anomaly, unscored (without a judge's score) or routine (all other scored
--     ones)
-- parameters: $project, $rater, $times (list of the event times of the exchanges that the rater has scored, from
--     score_times, to find their rows quickly; NULL: unknown)
WITH retained AS (
    SELECT date_trunc('day', make_timestamp(max(next_position))) AS since
    FROM log.watermarks
    WHERE consumer IN ('retention', 'cold') AND topic = $project
), days AS (
    SELECT d.disposition, d.exchanges, d.anomalies
    FROM log.score_days($project, TIMESTAMP '1970-01-01', TIMESTAMP '9999-12-31') AS d, retained
    WHERE d.disposition <> 'sampling_skip' AND d.day >= coalesce(retained.since, TIMESTAMP '1970-01-01')
), all_exchanges AS (
    SELECT 'anomaly' AS stratum, anomalies AS exchanges FROM days
    UNION ALL
    SELECT CASE WHEN disposition = 'scored' THEN 'routine' ELSE 'unscored' END AS stratum, exchanges - anomalies AS exchanges FROM days
), candidates AS MATERIALIZED (
    SELECT score_id, revision, _offset, anomaly, disposition
    FROM log.scores
    WHERE project = $project AND ($times IS NULL OR exchange_at IN (SELECT unnest($times::TIMESTAMP[])))
), rated AS (
    SELECT CASE WHEN anomaly THEN 'anomaly' WHEN disposition = 'scored' THEN 'routine' ELSE 'unscored' END AS stratum, disposition
    FROM candidates
    SEMI JOIN (
        SELECT subject_id AS score_id
        FROM log.reviews
        WHERE kind = 'human_score' AND score IS NOT NULL AND queue IS NULL AND project = $project AND reviewer = $rater
    ) USING (score_id)
    QUALIFY row_number() OVER (PARTITION BY score_id ORDER BY revision DESC, _offset DESC) = 1
), counted AS (
    SELECT stratum, sum(exchanges) AS exchanges, 0 AS mine FROM all_exchanges GROUP BY stratum
    UNION ALL
    SELECT stratum, 0 AS exchanges, count(*) AS mine FROM rated WHERE disposition <> 'sampling_skip' GROUP BY stratum
)
SELECT stratum, greatest(0, sum(exchanges) - sum(mine))::BIGINT AS waiting, sum(mine)::BIGINT AS mine
FROM counted
GROUP BY stratum
HAVING sum(exchanges) > 0
ORDER BY stratum
