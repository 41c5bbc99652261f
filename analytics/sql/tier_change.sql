-- purpose: how each agent did before a moment and since then, as if every exchange had been judged: a judged one counts 1 / sampling_probability times in the means of the judged tiers (once where it is always sampled)
-- grain: one row a project, agent and period (later: since $since, by event time, UTC), periods without exchanges left out; Tier 1 is of all exchanges, Tier 3 of those its gate let through
-- parameters: $since, $project (NULL for all)
WITH latest AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    WHERE $project IS NULL OR project = $project
    GROUP BY score_id
), weighted AS (
    SELECT
        project, coalesce(agent, '') AS agent, exchange_at >= $since::TIMESTAMP AS later, disposition, anomaly, simulated,
        tier1_score, 1 / coalesce(sampling_probability, 1) AS weight,
        CASE WHEN tier2_state = 'scored' THEN tier2_score END AS tier2,
        CASE WHEN tier2_5_state = 'scored' THEN tier2_5_alignment END AS tier2_5,
        CASE WHEN tier3_state = 'scored' THEN tier3_score END AS tier3
    FROM log.scores AS s
    SEMI JOIN latest AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
)
SELECT
    project, agent, later, count(*) AS exchanges, count(*) FILTER (disposition = 'scored') AS judged,
    round(avg(tier1_score), 3) AS mean_tier1,
    round(sum(tier2 * weight) / sum(weight) FILTER (tier2 IS NOT NULL), 3) AS mean_tier2,
    round(sum(tier2_5 * weight) / sum(weight) FILTER (tier2_5 IS NOT NULL), 3) AS mean_tier2_5,
    round(sum(tier3 * weight) / sum(weight) FILTER (tier3 IS NOT NULL), 3) AS mean_tier3,
    count(*) FILTER (anomaly) AS anomalies, count(*) FILTER (simulated) AS simulated
FROM weighted
GROUP BY ALL
ORDER BY project, agent, later
