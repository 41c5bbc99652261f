-- purpose: the current scores, newest exchange first
-- grain: one row an exchange
-- parameters: $project, $session (NULL for all), $anomalies (true: only anomalous ones), $limit
WITH days AS (
    SELECT day, sum(CASE WHEN $anomalies THEN anomalies ELSE exchanges END) AS found
    FROM log.score_days($project, TIMESTAMP '1970-01-01', TIMESTAMP '9999-12-31')
    WHERE $session IS NULL
    GROUP BY day
), bound AS (
    SELECT coalesce(max(day) FILTER (found_since >= $limit), TIMESTAMP '1970-01-01') AS since
    FROM (SELECT day, sum(found) OVER (ORDER BY day DESC) AS found_since FROM days)
), latest AS (
    -- An exchange keeps its project, session and time, so they may be asked for first; whether it is anomalous can change.
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    WHERE ($project IS NULL OR project = $project) AND ($session IS NULL OR session_id = $session)
        AND exchange_at >= (SELECT since FROM bound)
    GROUP BY score_id
)
SELECT
    exchange_at, project, connection, agent, session_id, turn_number, exchange_id, disposition, sampling_reason, tier1_score,
    tier1_flags, tier2_state, tier2_reason, tier2_score, tier2_5_state, tier2_5_reason, tier2_5_alignment, tier3_state,
    tier3_reason, tier3_score, anomaly, anomaly_reasons, judge_model, simulated, cost_usd, revision
FROM log.scores AS s
SEMI JOIN latest AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
WHERE ($project IS NULL OR project = $project) AND exchange_at >= (SELECT since FROM bound) AND (NOT $anomalies OR anomaly)
ORDER BY exchange_at DESC, session_id, turn_number DESC, exchange_id, score_id
LIMIT $limit
