-- purpose: every project with what tells how it is: what came of its exchanges altogether and lately and what that cost, its incidents, its runs, its newest check
-- grain: one row a project that something is known of, those of anchors left out; lately: the $days UTC days up to recent_until, its newest day with a score that had begun by $as_of; means are over the scores that have the tier, a judged one counts 1 / sampling_probability times; recent_cost_usd: the known costs of those days' exchanges; recent_unsafe_runs: in as many days up to its newest run; open_incidents, critical_incidents: confirmed ones that are open or acknowledged, acknowledged_incidents those of them that somebody has, suspected_incidents beside them; checked_at, check_days, baseline_days and check_findings: of its newest check for drift that had scores to look at, NULL without one
-- parameters: $project (NULL for all), $as_of (days that begin then or later are not lately), $days
WITH altogether AS MATERIALIZED (
    SELECT
        project, max(day) FILTER (day < $as_of::TIMESTAMP) AS newest, sum(exchanges)::BIGINT AS scores,
        sum(exchanges) FILTER (disposition = 'scored')::BIGINT AS scored, sum(anomalies)::BIGINT AS anomalies,
        sum(exchanges) FILTER (simulated)::BIGINT AS simulated
    FROM log.score_days($project, TIMESTAMP '2000-01-01', TIMESTAMP '2100-01-01')
    GROUP BY project
), ended AS (
    SELECT project, date_trunc('day', max(closed_at)) AS newest
    FROM log.diagnoses
    WHERE closed_at < log.first_day_of($as_of::TIMESTAMP, 1) + to_days(1) AND ($project IS NULL OR project = $project)
    GROUP BY project
), suspects AS (
    SELECT connection, session_id
    FROM log.diagnoses
    JOIN ended USING (project)
    WHERE readiness_level = 'unsafe_for_production' AND closed_at < newest + to_days(1)
        AND closed_at >= newest - to_days($days::INTEGER - 1)
), verdicts AS (
    SELECT project, readiness_level
    FROM log.diagnoses
    SEMI JOIN suspects USING (connection, session_id)
    QUALIFY row_number() OVER (PARTITION BY connection, session_id ORDER BY revision DESC, _offset DESC) = 1
), parts AS (
    SELECT project, newest::DATE AS recent_until, scores, scored, anomalies, simulated
    FROM altogether
    UNION ALL BY NAME
    SELECT
        project, sum(exchanges)::BIGINT AS recent_scores,
        sum(anomalies)::BIGINT AS recent_anomalies,
        coalesce(sum(exchanges) FILTER (disposition = 'scored'), 0)::BIGINT AS recent_scored,
        coalesce(sum(exchanges) FILTER (disposition = 'unscored'), 0)::BIGINT AS recent_unscored,
        sum(nano_usd) / 1e9 AS recent_cost_usd,
        round(log.mean_of(sum(tier1_count), sum(tier1_sum)), 3) AS recent_tier1,
        round(log.mean_of(sum(weight * tier2_count), sum(weight * tier2_sum)), 3) AS recent_tier2,
        round(log.mean_of(sum(weight * tier2_5_count), sum(weight * tier2_5_sum)), 3) AS recent_tier2_5,
        round(log.mean_of(sum(weight * tier3_count), sum(weight * tier3_sum)), 3) AS recent_tier3
    FROM log.score_days($project, TIMESTAMP '2000-01-01', TIMESTAMP '2100-01-01')
    JOIN (SELECT project, newest FROM altogether) AS known USING (project)
    WHERE day <= newest AND day > newest - to_days($days::INTEGER)
    GROUP BY project
    UNION ALL BY NAME
    SELECT project, count(*) AS exchanges, max(occurred_at) AS last_exchange_at
    FROM log.exchanges
    WHERE $project IS NULL OR project = $project
    GROUP BY project
    UNION ALL BY NAME
    SELECT
        project, count(*) FILTER (confidence = 'confirmed') AS open_incidents,
        count(*) FILTER (confidence = 'confirmed' AND severity = 'critical') AS critical_incidents,
        count(*) FILTER (confidence = 'confirmed' AND status = 'acknowledged') AS acknowledged_incidents,
        count(*) FILTER (confidence = 'suspected') AS suspected_incidents
    FROM incidents
    WHERE status IN ('open', 'acknowledged') AND ($project IS NULL OR project = $project)
    GROUP BY project
    UNION ALL BY NAME
    SELECT project, count(*) AS runs
    FROM log.run_numbers
    WHERE $project IS NULL OR project = $project
    GROUP BY project
    UNION ALL BY NAME
    SELECT project, checked_at, days AS check_days, baseline_days, findings AS check_findings
    FROM log.project_checks
    WHERE $project IS NULL OR project = $project
    UNION ALL BY NAME
    SELECT project, max(coalesce(ended_at, closed_at)) AS last_run_at
    FROM log.diagnoses
    WHERE $project IS NULL OR project = $project
    GROUP BY project
    UNION ALL BY NAME
    SELECT project, count(*) AS recent_unsafe_runs
    FROM verdicts
    WHERE readiness_level = 'unsafe_for_production'
    GROUP BY project
)
SELECT
    project,
    coalesce(any_value(exchanges), 0) AS exchanges, coalesce(any_value(scores), 0) AS scores,
    coalesce(any_value(scored), 0) AS scored, coalesce(any_value(anomalies), 0) AS anomalies,
    coalesce(any_value(simulated), 0) AS simulated, any_value(recent_until) AS recent_until,
    coalesce(any_value(recent_scores), 0) AS recent_scores, coalesce(any_value(recent_anomalies), 0) AS recent_anomalies,
    coalesce(any_value(recent_scored), 0) AS recent_scored, coalesce(any_value(recent_unscored), 0) AS recent_unscored,
    coalesce(any_value(recent_unsafe_runs), 0) AS recent_unsafe_runs, any_value(recent_cost_usd) AS recent_cost_usd,
    any_value(recent_tier1) AS recent_tier1, any_value(recent_tier2) AS recent_tier2,
    any_value(recent_tier2_5) AS recent_tier2_5, any_value(recent_tier3) AS recent_tier3,
    coalesce(any_value(open_incidents), 0) AS open_incidents, coalesce(any_value(critical_incidents), 0) AS critical_incidents,
    coalesce(any_value(acknowledged_incidents), 0) AS acknowledged_incidents,
    coalesce(any_value(suspected_incidents), 0) AS suspected_incidents,
    coalesce(any_value(runs), 0) AS runs, any_value(last_exchange_at) AS last_exchange_at, any_value(last_run_at) AS last_run_at,
    any_value(checked_at) AS checked_at, any_value(check_days) AS check_days, any_value(baseline_days) AS baseline_days,
    any_value(check_findings) AS check_findings
FROM parts
WHERE log.is_asked(project, $project)
GROUP BY project
ORDER BY project
