-- purpose: every project with its figures for the fleet: outcomes and cost of its exchanges in total and recently,
--     incidents, runs and newest check
-- grain: one row per project, except anchor projects. recent_*: from $from to $to; before_*: the period of equal
--     length before $from; last_score_day: newest UTC day with a score that began before $as_of; means cover the
--     scores that have the tier, where a judged exchange counts 1 / sampling_probability times; recent_cost_usd:
--     known costs of the recent exchanges; recent_runs, recent_unsafe_runs: runs with runtime events, and unsafe
--     runs, that ended recently; runs_with_evidence: runs with runtime events; open_incidents, critical_incidents:
--     confirmed and open or acknowledged, without notices; acknowledged_incidents: the acknowledged ones of these;
--     notice_incidents: confirmed notices, open or acknowledged; suspected_incidents: not confirmed; checked_at, check_days, baseline_days, check_findings: of the newest drift
--     check with scores, NULL without one
-- parameters: $project (NULL: all), $as_of (exclusive end of last_score_day, by the start of a day), $from
--     (inclusive) and $to (exclusive): whole UTC days
WITH fresh AS MATERIALIZED (
    SELECT * FROM log.fresh_score_days($project)
), scores AS NOT MATERIALIZED (
    -- The rows of `log.score_days`, written out because DuckDB would plan the macro twice: once for all days, once for the recent ones.
    SELECT * EXCLUDE (_topic, _partition, _offset)
    FROM log.daily_scores
    ANTI JOIN fresh USING (project, day)
    WHERE $project IS NULL OR project = $project
    UNION ALL BY NAME
    SELECT * FROM fresh
), totals AS MATERIALIZED (
    SELECT
        project, max(day) FILTER (day < $as_of::TIMESTAMP)::DATE AS last_score_day, sum(exchanges)::BIGINT AS scores,
        sum(exchanges) FILTER (disposition = 'scored')::BIGINT AS scored, sum(anomalies)::BIGINT AS anomalies,
        sum(exchanges) FILTER (simulated)::BIGINT AS simulated
    FROM scores
    GROUP BY project
), periods AS MATERIALIZED (
    SELECT
        project, day >= $from::TIMESTAMP AS is_recent, sum(exchanges)::BIGINT AS scores, sum(anomalies)::BIGINT AS anomalies,
        coalesce(sum(exchanges) FILTER (disposition = 'scored'), 0)::BIGINT AS scored,
        coalesce(sum(exchanges) FILTER (disposition = 'unscored'), 0)::BIGINT AS unscored, sum(nano_usd) / 1e9 AS cost_usd,
        round(log.mean_of(sum(tier1_count), sum(tier1_sum)), 3) AS tier1,
        round(log.mean_of(sum(weight * tier2_count), sum(weight * tier2_sum)), 3) AS tier2,
        round(log.mean_of(sum(weight * tier2_5_count), sum(weight * tier2_5_sum)), 3) AS tier2_5,
        round(log.mean_of(sum(weight * tier3_count), sum(weight * tier3_sum)), 3) AS tier3
    FROM scores
    WHERE day >= $from::TIMESTAMP - ($to::TIMESTAMP - $from::TIMESTAMP) AND day < $to::TIMESTAMP
    GROUP BY ALL
), run_ends AS MATERIALIZED (
    SELECT
        project, max(coalesce(ended_at, closed_at)) AS last_run_at,
        count(*) FILTER (event_count = 0 AND revision = 0) AS first_without_evidence
    FROM log.diagnoses
    WHERE $project IS NULL OR project = $project
    GROUP BY project
), revised AS MATERIALIZED (
    -- Nearly all runs are diagnosed once, so compare only the ids of the others.
    SELECT
        connection, session_id, bool_or(event_count > 0) AS has_evidence,
        arg_max(project, (revision, _offset)) AS project, arg_max(readiness_level, (revision, _offset)) AS readiness_level
    FROM log.diagnoses
    WHERE revision > 0
    GROUP BY connection, session_id
), revisions AS (
    SELECT incident_id, revision, _offset
    FROM log.incidents
    WHERE $project IS NULL OR project = $project
), recent_run_ends AS MATERIALIZED (
    SELECT project, connection, session_id, readiness_level = 'unsafe_for_production' AS is_unsafe, event_count > 0 AS has_evidence
    FROM log.diagnoses
    WHERE coalesce(ended_at, closed_at) >= $from::TIMESTAMP AND coalesce(ended_at, closed_at) < $to::TIMESTAMP
        AND ($project IS NULL OR project = $project)
), parts AS (
    SELECT project, last_score_day, scores, scored, anomalies, simulated
    FROM totals
    UNION ALL BY NAME
    SELECT
        project, scores AS recent_scores, anomalies AS recent_anomalies, scored AS recent_scored, unscored AS recent_unscored,
        cost_usd AS recent_cost_usd, tier1 AS recent_tier1, tier2 AS recent_tier2, tier2_5 AS recent_tier2_5, tier3 AS recent_tier3
    FROM periods
    WHERE is_recent
    UNION ALL BY NAME
    SELECT
        project, scores AS before_scores, anomalies AS before_anomalies, scored AS before_scored, unscored AS before_unscored,
        cost_usd AS before_cost_usd, tier1 AS before_tier1, tier2 AS before_tier2, tier2_5 AS before_tier2_5, tier3 AS before_tier3
    FROM periods
    WHERE NOT is_recent
    UNION ALL BY NAME
    SELECT project, sum(exchanges)::BIGINT AS exchanges, max(last_at) AS last_exchange_at
    FROM log.exchange_days($project)
    GROUP BY project
    UNION ALL BY NAME
    SELECT
        project, count(*) FILTER (confidence = 'confirmed' AND severity <> 'notice') AS open_incidents,
        count(*) FILTER (confidence = 'confirmed' AND severity = 'critical') AS critical_incidents,
        count(*) FILTER (confidence = 'confirmed' AND severity <> 'notice' AND status = 'acknowledged') AS acknowledged_incidents,
        count(*) FILTER (confidence = 'confirmed' AND severity = 'notice') AS notice_incidents,
        count(*) FILTER (confidence = 'suspected') AS suspected_incidents
    FROM log.incidents AS i
    ANTI JOIN revisions AS later
    ON i.incident_id = later.incident_id AND (later.revision > i.revision OR later.revision = i.revision AND later._offset > i._offset)
    WHERE status IN ('open', 'acknowledged') AND ($project IS NULL OR project = $project)
    GROUP BY project
    UNION ALL BY NAME
    SELECT project, count(*) AS runs
    FROM log.run_numbers
    WHERE $project IS NULL OR project = $project
    GROUP BY project
    UNION ALL BY NAME
    SELECT project, count(*) AS runs_without_evidence
    FROM revised
    WHERE NOT has_evidence
    GROUP BY project
    UNION ALL BY NAME
    SELECT project, -count(*) AS runs_without_evidence
    FROM log.diagnoses
    SEMI JOIN revised USING (connection, session_id)
    WHERE event_count = 0 AND revision = 0 AND ($project IS NULL OR project = $project)
    GROUP BY project
    UNION ALL BY NAME
    SELECT project, checked_at, days AS check_days, baseline_days, findings AS check_findings
    FROM log.project_checks
    WHERE $project IS NULL OR project = $project
    UNION ALL BY NAME
    SELECT project, last_run_at, first_without_evidence AS runs_without_evidence
    FROM run_ends
    UNION ALL BY NAME
    SELECT coalesce(r.project, s.project) AS project, count(DISTINCT (connection, session_id)) AS recent_unsafe_runs
    FROM recent_run_ends AS s
    LEFT JOIN revised AS r USING (connection, session_id)
    WHERE is_unsafe AND coalesce(r.readiness_level, 'unsafe_for_production') = 'unsafe_for_production'
    GROUP BY ALL
    UNION ALL BY NAME
    SELECT project, count(*) AS recent_runs
    FROM recent_run_ends
    ANTI JOIN revised USING (connection, session_id)
    WHERE has_evidence
    GROUP BY project
    UNION ALL BY NAME
    SELECT r.project, count(DISTINCT (connection, session_id)) AS recent_runs
    FROM recent_run_ends
    JOIN revised AS r USING (connection, session_id)
    WHERE r.has_evidence
    GROUP BY r.project
)
SELECT
    project,
    coalesce(any_value(exchanges), 0) AS exchanges, coalesce(any_value(scores), 0) AS scores,
    coalesce(any_value(scored), 0) AS scored, coalesce(any_value(anomalies), 0) AS anomalies,
    coalesce(any_value(simulated), 0) AS simulated, any_value(last_score_day) AS last_score_day,
    coalesce(any_value(recent_scores), 0) AS recent_scores, coalesce(any_value(recent_anomalies), 0) AS recent_anomalies,
    coalesce(any_value(recent_scored), 0) AS recent_scored, coalesce(any_value(recent_unscored), 0) AS recent_unscored,
    coalesce(any_value(recent_unsafe_runs), 0) AS recent_unsafe_runs, coalesce(sum(recent_runs), 0)::BIGINT AS recent_runs,
    any_value(recent_cost_usd) AS recent_cost_usd,
    any_value(recent_tier1) AS recent_tier1, any_value(recent_tier2) AS recent_tier2,
    any_value(recent_tier2_5) AS recent_tier2_5, any_value(recent_tier3) AS recent_tier3,
    coalesce(any_value(before_scores), 0) AS before_scores, coalesce(any_value(before_anomalies), 0) AS before_anomalies,
    coalesce(any_value(before_scored), 0) AS before_scored, coalesce(any_value(before_unscored), 0) AS before_unscored,
    any_value(before_cost_usd) AS before_cost_usd, any_value(before_tier1) AS before_tier1, any_value(before_tier2) AS before_tier2,
    any_value(before_tier2_5) AS before_tier2_5, any_value(before_tier3) AS before_tier3,
    coalesce(any_value(open_incidents), 0) AS open_incidents, coalesce(any_value(critical_incidents), 0) AS critical_incidents,
    coalesce(any_value(acknowledged_incidents), 0) AS acknowledged_incidents,
    coalesce(any_value(notice_incidents), 0) AS notice_incidents,
    coalesce(any_value(suspected_incidents), 0) AS suspected_incidents,
    coalesce(any_value(runs), 0) AS runs,
    greatest(coalesce(any_value(runs), 0) - coalesce(sum(runs_without_evidence), 0), 0)::BIGINT AS runs_with_evidence,
    any_value(last_exchange_at) AS last_exchange_at, any_value(last_run_at) AS last_run_at,
    any_value(checked_at) AS checked_at, any_value(check_days) AS check_days, any_value(baseline_days) AS baseline_days,
    any_value(check_findings) AS check_findings
FROM parts
WHERE log.matches_project(project, $project)
GROUP BY project
ORDER BY project
