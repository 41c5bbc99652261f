-- purpose: every project with what tells how it is: what came of its exchanges altogether and lately, its incidents, its runs
-- grain: one row a project that something is known of, those of anchors left out; lately: the $days UTC days up to recent_until, its newest day with a score that had begun by $as_of; means are over the scores that have the tier
-- parameters: $project (NULL for all), $as_of (days that begin then or later are not lately), $days
WITH days AS MATERIALIZED (
    FROM log.score_days($project, TIMESTAMP '2000-01-01', TIMESTAMP '2100-01-01')
), newest AS (
    SELECT project, max(day) AS newest FROM days WHERE day < $as_of::TIMESTAMP GROUP BY project
), parts AS (
    SELECT
        project, sum(exchanges)::BIGINT AS scores, sum(exchanges) FILTER (disposition = 'scored')::BIGINT AS scored,
        sum(anomalies)::BIGINT AS anomalies, sum(exchanges) FILTER (simulated)::BIGINT AS simulated
    FROM days
    GROUP BY project
    UNION ALL BY NAME
    SELECT
        project, max(newest)::DATE AS recent_until, sum(exchanges)::BIGINT AS recent_scores,
        sum(anomalies)::BIGINT AS recent_anomalies,
        round(log.mean_of(sum(tier1_count), sum(tier1_sum)), 3) AS recent_tier1,
        round(log.mean_of(sum(tier2_count), sum(tier2_sum)), 3) AS recent_tier2,
        round(log.mean_of(sum(tier2_5_count), sum(tier2_5_sum)), 3) AS recent_tier2_5,
        round(log.mean_of(sum(tier3_count), sum(tier3_sum)), 3) AS recent_tier3
    FROM days
    JOIN newest USING (project)
    WHERE day <= newest AND day > newest - to_days($days::INTEGER)
    GROUP BY project
    UNION ALL BY NAME
    SELECT project, count(*) AS exchanges, max(occurred_at) AS last_exchange_at
    FROM log.exchanges
    WHERE $project IS NULL OR project = $project
    GROUP BY project
    UNION ALL BY NAME
    SELECT project, count(*) AS open_incidents, count(*) FILTER (severity = 'critical') AS critical_incidents
    FROM incidents
    WHERE status = 'open' AND ($project IS NULL OR project = $project)
    GROUP BY project
    UNION ALL BY NAME
    SELECT project, count(*) AS runs
    FROM log.run_numbers
    WHERE $project IS NULL OR project = $project
    GROUP BY project
)
SELECT
    project,
    coalesce(any_value(exchanges), 0) AS exchanges, coalesce(any_value(scores), 0) AS scores,
    coalesce(any_value(scored), 0) AS scored, coalesce(any_value(anomalies), 0) AS anomalies,
    coalesce(any_value(simulated), 0) AS simulated, any_value(recent_until) AS recent_until,
    coalesce(any_value(recent_scores), 0) AS recent_scores, coalesce(any_value(recent_anomalies), 0) AS recent_anomalies,
    any_value(recent_tier1) AS recent_tier1, any_value(recent_tier2) AS recent_tier2,
    any_value(recent_tier2_5) AS recent_tier2_5, any_value(recent_tier3) AS recent_tier3,
    coalesce(any_value(open_incidents), 0) AS open_incidents, coalesce(any_value(critical_incidents), 0) AS critical_incidents,
    coalesce(any_value(runs), 0) AS runs, any_value(last_exchange_at) AS last_exchange_at
FROM parts
WHERE log.is_asked(project, $project)
GROUP BY project
ORDER BY project
