-- purpose: what the sequential rule of drift looks at: the scores of each session on each UTC day added up, as if every exchange had been judged: a judged one counts 1 / sampling_probability times; by the time of the exchanges, whenever they were scored
-- grain: one row a project, tier (tier1, tier2, tier2_5, tier3) and session on a day, by the time of its last exchange (last_at); where a day has more than 48 sessions with scores of the tier, those that end within one hour are added up to one row; sessions: how many it holds; weight: sum of the weights; total: sum of weight times score
-- parameters: $project (NULL for all but those of anchors), $as_of (what happened then or later is left out), $days (the last UTC days, of which the last one may not be over)
WITH latest AS (
    SELECT *
    FROM log.scores
    WHERE log.is_asked(project, $project)
        AND exchange_at >= log.first_day_of($as_of::TIMESTAMP, $days) AND exchange_at < $as_of::TIMESTAMP
    QUALIFY row_number() OVER (PARTITION BY project, score_id ORDER BY revision DESC, _offset DESC) = 1
), scored AS (
    SELECT project, 'tier1' AS tier, exchange_at, connection, session_id, tier1_score AS score, 1.0 AS weight FROM latest
    UNION ALL
    SELECT project, 'tier2' AS tier, exchange_at, connection, session_id, tier2_score, 1 / coalesce(sampling_probability, 1) FROM latest WHERE tier2_state = 'scored'
    UNION ALL
    SELECT project, 'tier2_5' AS tier, exchange_at, connection, session_id, tier2_5_alignment, 1 / coalesce(sampling_probability, 1) FROM latest WHERE tier2_5_state = 'scored'
    UNION ALL
    SELECT project, 'tier3' AS tier, exchange_at, connection, session_id, tier3_score, 1 / coalesce(sampling_probability, 1) FROM latest WHERE tier3_state = 'scored'
), sessions AS (
    SELECT
        project, tier, date_trunc('day', exchange_at) AS day, max(exchange_at) AS last_at, count(*) AS scores, sum(weight) AS weight,
        sum(weight * score) AS total
    FROM scored
    GROUP BY project, tier, day, connection, session_id
), placed AS (
    SELECT
        *, CASE WHEN count(*) OVER (PARTITION BY project, tier, day) > 48 THEN date_trunc('hour', last_at) END AS hour,
        CASE WHEN hour IS NULL THEN row_number() OVER () END AS single
    FROM sessions
)
SELECT
    project, tier, day::DATE AS day, max(last_at) AS last_at, count(*) AS sessions, sum(scores)::BIGINT AS scores, sum(weight) AS weight,
    sum(total) AS total
FROM placed
GROUP BY project, tier, placed.day, hour, single
ORDER BY project, tier, last_at, weight, total
