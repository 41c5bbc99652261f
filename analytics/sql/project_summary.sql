-- purpose: the state of a project: outcomes of its exchanges, means of the tiers, judging costs and open incidents
-- grain: one row per project. pending: exchanges without a score; unscored_reasons: an unscored exchange counts once
--     per reason of its unscored tiers; means cover the scores that have the tier; cost_usd: known costs of all
--     judgements, including simulated ones, NULL if all are unknown
-- parameters: $project (NULL: all)
WITH retained AS (
    SELECT topic AS project, date_trunc('day', make_timestamp(next_position)) AS since
    FROM log.watermarks
    WHERE consumer = 'retention'
), days AS (
    SELECT d.*
    FROM log.score_days($project, TIMESTAMP '1970-01-01', TIMESTAMP '9999-12-31') AS d
    LEFT JOIN retained USING (project)
    WHERE d.day >= coalesce(since, TIMESTAMP '1970-01-01')
), scored AS (
    SELECT project, day, sum(exchanges) AS scores FROM days GROUP BY project, day
), exchange_days AS (
    SELECT project, day, exchanges FROM log.exchange_days($project)
), incomplete_days AS (
    SELECT project, day FROM exchange_days LEFT JOIN scored USING (project, day) WHERE exchanges <> coalesce(scores, 0)
), scored_exchanges AS (
    SELECT connection, exchange_id
    FROM log.scores
    SEMI JOIN incomplete_days ON scores.project = incomplete_days.project AND date_trunc('day', exchange_at) = incomplete_days.day
    WHERE $project IS NULL OR scores.project = $project
), open_scores AS (
    SELECT * FROM log.scores WHERE disposition = 'unscored' AND ($project IS NULL OR project = $project)
), newest AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    SEMI JOIN open_scores USING (project, score_id)
    WHERE $project IS NULL OR project = $project
    GROUP BY score_id
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
    FROM open_scores AS s
    SEMI JOIN newest AS n ON s.score_id = n.score_id AND (s.revision, s._offset) = n.version
), reasons AS (
    SELECT project, reason, count(*) AS exchanges FROM unscored GROUP BY project, reason
), incident_versions AS (
    SELECT incident_id, max((revision, _offset)) AS version
    FROM log.incidents
    WHERE $project IS NULL OR project = $project
    GROUP BY incident_id
), parts AS (
    SELECT project, sum(exchanges)::BIGINT AS exchanges FROM exchange_days GROUP BY project
    UNION ALL BY NAME
    SELECT project, count(*) AS pending
    FROM log.current_exchanges AS e
    SEMI JOIN incomplete_days ON e.project = incomplete_days.project AND date_trunc('day', occurred_at) = incomplete_days.day
    ANTI JOIN scored_exchanges USING (connection, exchange_id)
    WHERE $project IS NULL OR e.project = $project
    GROUP BY project
    UNION ALL BY NAME
    SELECT
        project, sum(exchanges)::BIGINT AS scores,
        coalesce(sum(exchanges) FILTER (disposition = 'scored'), 0)::BIGINT AS scored,
        coalesce(sum(exchanges) FILTER (disposition = 'sampling_skip'), 0)::BIGINT AS skipped_sampling,
        coalesce(sum(exchanges) FILTER (disposition = 'skipped_cost_cap'), 0)::BIGINT AS skipped_cost_cap,
        coalesce(sum(exchanges) FILTER (disposition = 'unscored'), 0)::BIGINT AS unscored,
        sum(anomalies)::BIGINT AS anomalies, coalesce(sum(exchanges) FILTER (simulated), 0)::BIGINT AS simulated,
        round(log.mean_of(sum(tier1_count), sum(tier1_sum)), 3) AS mean_tier1,
        round(log.mean_of(sum(tier2_count), sum(tier2_sum)), 3) AS mean_tier2,
        round(log.mean_of(sum(tier2_5_count), sum(tier2_5_sum)), 3) AS mean_tier2_5,
        round(log.mean_of(sum(tier3_count), sum(tier3_sum)), 3) AS mean_tier3
    FROM days
    GROUP BY project
    UNION ALL BY NAME
    SELECT project, list({'reason': reason, 'exchanges': exchanges} ORDER BY reason) AS unscored_reasons
    FROM reasons
    GROUP BY project
    UNION ALL BY NAME
    SELECT project, sum(nano_usd)::BIGINT AS nano_usd, sum(judgements)::BIGINT AS judgements, sum(unknown_costs)::BIGINT AS unknown_costs
    FROM log.cost_hours($project, TIMESTAMP '1970-01-01', TIMESTAMP '9999-12-31')
    GROUP BY project
    UNION ALL BY NAME
    SELECT
        project, count(*) FILTER (confidence = 'confirmed' AND severity <> 'notice') AS open_incidents,
        count(*) FILTER (confidence = 'suspected') AS suspected_incidents
    FROM log.incidents AS i
    SEMI JOIN incident_versions AS v ON i.incident_id = v.incident_id AND (i.revision, i._offset) = v.version
    WHERE status IN ('open', 'acknowledged')
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
    CASE WHEN any_value(judgements) = any_value(unknown_costs) THEN NULL ELSE coalesce(any_value(nano_usd), 0) / 1e9 END AS cost_usd,
    coalesce(any_value(unknown_costs), 0) AS unknown_costs,
    coalesce(any_value(simulated), 0) AS simulated, coalesce(any_value(open_incidents), 0) AS open_incidents,
    coalesce(any_value(suspected_incidents), 0) AS suspected_incidents
FROM parts
GROUP BY project
ORDER BY project
