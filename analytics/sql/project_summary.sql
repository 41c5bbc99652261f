-- purpose: where a project stands: what became of its exchanges, means of the tiers over the scores that have them, what judging cost, what is open
-- grain: one row a project; pending: no score yet; unscored_reasons: each unscored exchange once for every reason of its unscored tiers; cost_usd: the known costs of its judgements, whatever they were about, simulated ones included; NULL where all are unknown
-- parameters: $project (NULL for all)
WITH latest AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    WHERE $project IS NULL OR project = $project
    GROUP BY score_id
), current AS (
    SELECT
        project, connection, exchange_id, disposition, anomaly, simulated, tier1_score, tier2_state, tier2_score,
        tier2_5_state, tier2_5_alignment, tier3_state, tier3_score, tier2_reason, tier2_5_reason, tier3_reason
    FROM log.scores AS s
    SEMI JOIN latest AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
), unscored AS (
    SELECT
        project,
        unnest(list_distinct([
            t.reason FOR t IN [
                {'state': tier2_state, 'reason': tier2_reason},
                {'state': tier2_5_state, 'reason': tier2_5_reason},
                {'state': tier3_state, 'reason': tier3_reason}
            ] IF t.state = 'unscored'
        ])) AS reason
    FROM current
    WHERE disposition = 'unscored'
), reasons AS (
    SELECT project, reason, count(*) AS exchanges FROM unscored GROUP BY project, reason
), parts AS (
    SELECT project, count(*) AS exchanges FROM exchanges WHERE $project IS NULL OR project = $project GROUP BY project
    UNION ALL BY NAME
    SELECT project, count(*) AS pending
    FROM exchanges ANTI JOIN current USING (connection, exchange_id)
    WHERE $project IS NULL OR project = $project
    GROUP BY project
    UNION ALL BY NAME
    SELECT
        project, count(*) AS scores,
        count(*) FILTER (disposition = 'scored') AS scored,
        count(*) FILTER (disposition = 'sampling_skip') AS skipped_sampling,
        count(*) FILTER (disposition = 'skipped_cost_cap') AS skipped_cost_cap,
        count(*) FILTER (disposition = 'unscored') AS unscored,
        count(*) FILTER (anomaly) AS anomalies, count(*) FILTER (simulated) AS simulated,
        round(avg(tier1_score), 3) AS mean_tier1,
        round(avg(tier2_score) FILTER (tier2_state = 'scored'), 3) AS mean_tier2,
        round(avg(tier2_5_alignment) FILTER (tier2_5_state = 'scored'), 3) AS mean_tier2_5,
        round(avg(tier3_score) FILTER (tier3_state = 'scored'), 3) AS mean_tier3
    FROM current
    GROUP BY project
    UNION ALL BY NAME
    SELECT project, list({'reason': reason, 'exchanges': exchanges} ORDER BY reason) AS unscored_reasons
    FROM reasons
    GROUP BY project
    UNION ALL BY NAME
    SELECT project, sum(round(cost_usd * 1e9)::BIGINT) AS nano_usd, count(*) FILTER (cost_usd IS NULL) AS unknown_costs
    FROM judgements
    WHERE $project IS NULL OR project = $project
    GROUP BY project
    UNION ALL BY NAME
    SELECT project, count(*) AS open_incidents
    FROM incidents
    WHERE status = 'open' AND ($project IS NULL OR project = $project)
    GROUP BY project
)
SELECT
    project,
    coalesce(any_value(exchanges), 0) AS exchanges, coalesce(any_value(scored), 0) AS scored,
    coalesce(any_value(pending), 0) AS pending, coalesce(any_value(skipped_sampling), 0) AS skipped_sampling,
    coalesce(any_value(skipped_cost_cap), 0) AS skipped_cost_cap, coalesce(any_value(unscored), 0) AS unscored,
    coalesce(any_value(unscored_reasons), []) AS unscored_reasons,
    coalesce(any_value(scores), 0) AS scores, coalesce(any_value(anomalies), 0) AS anomalies,
    any_value(mean_tier1) AS mean_tier1, any_value(mean_tier2) AS mean_tier2, any_value(mean_tier2_5) AS mean_tier2_5,
    any_value(mean_tier3) AS mean_tier3,
    CASE WHEN any_value(nano_usd) IS NOT NULL OR coalesce(any_value(unknown_costs), 0) = 0
        THEN coalesce(any_value(nano_usd), 0) / 1e9 END AS cost_usd,
    coalesce(any_value(unknown_costs), 0) AS unknown_costs,
    coalesce(any_value(simulated), 0) AS simulated, coalesce(any_value(open_incidents), 0) AS open_incidents
FROM parts
GROUP BY project
ORDER BY project
