-- purpose: how much waits for a look of this rater, and how much of it the rater has scored, by why it is looked at
-- grain: one row per stratum with exchanges: anomaly, unscored (what the judge left) or routine (everything else that was scored)
-- parameters: $project, $rater, $times (list: when the exchanges were that the rater has scored, as score_times answers, which makes them quick to find; NULL: not known)
WITH kept AS (
    SELECT date_trunc('day', make_timestamp(max(next_position))) AS since
    FROM log.watermarks
    WHERE consumer = 'retention' AND topic = $project
), days AS (
    SELECT d.disposition, d.exchanges, d.anomalies
    FROM log.score_days($project, TIMESTAMP '1970-01-01', TIMESTAMP '9999-12-31') AS d, kept
    WHERE d.disposition <> 'sampling_skip' AND d.day >= coalesce(kept.since, TIMESTAMP '1970-01-01')
), everything AS (
    SELECT 'anomaly' AS stratum, anomalies AS exchanges FROM days
    UNION ALL
    SELECT CASE WHEN disposition = 'scored' THEN 'routine' ELSE 'unscored' END AS stratum, exchanges - anomalies AS exchanges FROM days
), near AS MATERIALIZED (
    SELECT score_id, revision, _offset, anomaly, disposition
    FROM log.scores
    WHERE project = $project AND ($times IS NULL OR exchange_at IN (SELECT unnest($times::TIMESTAMP[])))
), done AS (
    SELECT CASE WHEN anomaly THEN 'anomaly' WHEN disposition = 'scored' THEN 'routine' ELSE 'unscored' END AS stratum, disposition
    FROM near
    SEMI JOIN (
        SELECT subject_id AS score_id
        FROM log.reviews
        WHERE kind = 'human_score' AND score IS NOT NULL AND project = $project AND reviewer = $rater
    ) USING (score_id)
    QUALIFY row_number() OVER (PARTITION BY score_id ORDER BY revision DESC, _offset DESC) = 1
), counted AS (
    SELECT stratum, sum(exchanges) AS exchanges, 0 AS mine FROM everything GROUP BY stratum
    UNION ALL
    SELECT stratum, 0 AS exchanges, count(*) AS mine FROM done WHERE disposition <> 'sampling_skip' GROUP BY stratum
)
SELECT stratum, greatest(0, sum(exchanges) - sum(mine))::BIGINT AS waiting, sum(mine)::BIGINT AS mine
FROM counted
GROUP BY stratum
HAVING sum(exchanges) > 0
ORDER BY stratum
