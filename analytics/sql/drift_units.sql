-- purpose: the input of the sequential drift rule: scores summed by session and UTC day, where a judged exchange
--     counts 1 / sampling_probability times, by the time of the exchange
-- grain: one row per project, tier (tier1, tier2, tier2_5, tier3), day and hour of the sessions' last exchange.
--     last_at: time of the latest of these exchanges; sessions: number of sessions; weight: sum of the weights;
--     total: sum of weight times score; squares, mixed, totals: sums over the sessions of weight², weight times
--     total, and total²; low, high: smallest and largest mean of a session
-- parameters: $project (NULL: all except anchor projects), $as_of (exclusive end), $days (number of UTC days; the
--     last may be incomplete)
WITH later AS (
    -- Most scores have one revision, so it is cheaper to find those with more.
    SELECT project, score_id, max((revision, _offset)) AS version
    FROM log.scores
    WHERE revision > 0 AND log.matches_project(project, $project)
        AND exchange_at >= log.first_day_of($as_of::TIMESTAMP, $days) AND exchange_at < $as_of::TIMESTAMP
    GROUP BY project, score_id
), latest AS (
    SELECT
        project, connection, session_id, exchange_at, 1 / coalesce(sampling_probability, 1) AS weight, tier1_score AS tier1,
        CASE WHEN tier2_state = 'scored' THEN tier2_score END AS tier2,
        CASE WHEN tier2_5_state = 'scored' THEN tier2_5_alignment END AS tier2_5,
        CASE WHEN tier3_state = 'scored' THEN tier3_score END AS tier3
    FROM log.scores AS s
    LEFT JOIN later AS l USING (project, score_id)
    WHERE log.matches_project(project, $project)
        AND exchange_at >= log.first_day_of($as_of::TIMESTAMP, $days) AND exchange_at < $as_of::TIMESTAMP
        AND (l.version IS NULL OR (s.revision, s._offset) = l.version)
), summed AS (
    SELECT
        project, date_trunc('day', exchange_at) AS day, connection, session_id,
        max(exchange_at) AS tier1_last_at, count(*) AS tier1_scores, count(*)::DOUBLE AS tier1_weight, sum(tier1) AS tier1_total,
        max(exchange_at) FILTER (tier2 IS NOT NULL) AS tier2_last_at, count(tier2) AS tier2_scores,
        sum(weight) FILTER (tier2 IS NOT NULL) AS tier2_weight, sum(weight * tier2) AS tier2_total,
        max(exchange_at) FILTER (tier2_5 IS NOT NULL) AS tier2_5_last_at, count(tier2_5) AS tier2_5_scores,
        sum(weight) FILTER (tier2_5 IS NOT NULL) AS tier2_5_weight, sum(weight * tier2_5) AS tier2_5_total,
        max(exchange_at) FILTER (tier3 IS NOT NULL) AS tier3_last_at, count(tier3) AS tier3_scores,
        sum(weight) FILTER (tier3 IS NOT NULL) AS tier3_weight, sum(weight * tier3) AS tier3_total
    FROM latest
    GROUP BY project, day, connection, session_id
), sessions AS (
    SELECT project, 'tier1' AS tier, day, tier1_last_at AS last_at, tier1_scores AS scores, tier1_weight AS weight, tier1_total AS total
    FROM summed WHERE tier1_scores > 0
    UNION ALL
    SELECT project, 'tier2' AS tier, day, tier2_last_at AS last_at, tier2_scores AS scores, tier2_weight AS weight, tier2_total AS total
    FROM summed WHERE tier2_scores > 0
    UNION ALL
    SELECT project, 'tier2_5' AS tier, day, tier2_5_last_at AS last_at, tier2_5_scores AS scores, tier2_5_weight AS weight,
        tier2_5_total AS total
    FROM summed WHERE tier2_5_scores > 0
    UNION ALL
    SELECT project, 'tier3' AS tier, day, tier3_last_at AS last_at, tier3_scores AS scores, tier3_weight AS weight, tier3_total AS total
    FROM summed WHERE tier3_scores > 0
), sessions_by_hour AS (
    SELECT *, date_trunc('hour', last_at) AS hour FROM sessions
)
SELECT
    project, tier, day::DATE AS day, max(last_at) AS last_at, count(*) AS sessions, sum(scores)::BIGINT AS scores, sum(weight) AS weight,
    sum(total) AS total, sum(weight ** 2) AS squares, sum(weight * total) AS mixed, sum(total ** 2) AS totals,
    min(total / weight) AS low, max(total / weight) AS high
FROM sessions_by_hour
GROUP BY project, tier, sessions_by_hour.day, hour
ORDER BY project, tier, last_at
