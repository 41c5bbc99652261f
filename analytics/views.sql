-- Views for analysts, over the latest revisions. Days are UTC days of the event time. Weight is 1 / sampling_probability, the number
-- of exchanges that a judged one represents. Anchors, which are judged to watch the judge, are only in anchor_turns.
CREATE VIEW all_turns AS
SELECT
    exchange_at::DATE AS day, project, agent, "connection", session_id, turn_number, exchange_id, score_id, revision,
    exchange_at, scored_at, disposition, sampling_reason,
    CASE WHEN disposition = 'scored' THEN 1 / coalesce(sampling_probability, 1) END AS weight,
    tier1_score AS tier1,
    CASE WHEN tier2_state = 'scored' THEN tier2_score END AS tier2,
    CASE WHEN tier2_5_state = 'scored' THEN tier2_5_alignment END AS tier2_5,
    CASE WHEN tier3_state = 'scored' THEN tier3_score END AS tier3,
    tier2_state, tier2_5_state, tier3_state, tier1_flags, tier2_flagged, tier2_5_sycophancy AS sycophancy,
    tier2_5_advocacy_suppression AS advocacy_suppression, anomaly, anomaly_reasons, judge_model, cost_usd,
    methodology || ' ' || methodology_version AS methodology, policy_digest, rule_version, simulated
FROM scores;
COMMENT ON VIEW all_turns IS 'The rows of turns and anchor_turns together.';
CREATE VIEW turns AS FROM all_turns WHERE NOT starts_with(project, 'anchors.');
COMMENT ON VIEW turns IS 'One row per exchange, in its latest revision, with the result of each tier. An unscored tier is NULL, never 0.';
COMMENT ON COLUMN turns.day IS 'Day of the exchange, UTC.';
COMMENT ON COLUMN turns.weight IS 'Number of exchanges that this one represents, 1 / sampling_probability; NULL if it was not judged.';
COMMENT ON COLUMN turns.tier1 IS 'Rules, 0 to 1; every exchange has it, so its mean needs no weight.';
COMMENT ON COLUMN turns.tier2 IS 'Judge: scope and completeness, 0 to 1.';
COMMENT ON COLUMN turns.tier2_5 IS 'Judge: how well the thinking supports the answer, 0 to 1.';
COMMENT ON COLUMN turns.tier3 IS 'Judge: behaviour, 1 to 5; only for exchanges that passed the gate.';
COMMENT ON COLUMN turns.disposition IS 'scored, sampling_skip, skipped_cost_cap or unscored.';
COMMENT ON COLUMN turns.sampling_reason IS 'Why the exchange was sampled or left out.';
COMMENT ON COLUMN turns.anomaly_reasons IS 'Why the exchange is anomalous, as text.';
COMMENT ON COLUMN turns.cost_usd IS 'Cost of judging in USD; NULL if a price is unknown.';
COMMENT ON COLUMN turns.methodology IS 'Name and version of the methodology.';
COMMENT ON COLUMN turns.simulated IS 'Whether a simulated judge was used.';
CREATE VIEW anchor_turns AS
SELECT * REPLACE (substr(project, length('anchors.') + 1) AS project) FROM all_turns WHERE starts_with(project, 'anchors.');
COMMENT ON VIEW anchor_turns IS 'Like turns, for anchors: exchanges that never change and are judged repeatedly, so any change comes from the judge.';
CREATE VIEW dimensions AS
SELECT day, project, agent, "connection", session_id, exchange_id, score_id, exchange_at, weight, tier, judge_model, methodology,
    dimension.dimension AS dimension, dimension.score AS score, dimension.reasoning AS reasoning
FROM (
    SELECT t.*, 'tier2' AS tier, unnest(s.tier2_dimensions) AS dimension FROM turns AS t JOIN scores AS s USING (score_id)
    WHERE t.tier2 IS NOT NULL
    UNION ALL
    SELECT t.*, 'tier3' AS tier, unnest(s.tier3_dimensions) AS dimension FROM turns AS t JOIN scores AS s USING (score_id)
    WHERE t.tier3 IS NOT NULL
);
COMMENT ON VIEW dimensions IS 'One row per exchange and dimension that the judge scored, with its reasoning.';
COMMENT ON COLUMN dimensions.tier IS 'tier2 (0 to 1) or tier3 (1 to 5).';
COMMENT ON COLUMN dimensions.score IS 'Score on the scale of the tier.';
COMMENT ON COLUMN dimensions.reasoning IS 'The judge''s reasoning.';
CREATE VIEW days AS
SELECT
    project, agent, day, count(*) AS exchanges, count(*) FILTER (disposition = 'scored') AS judged,
    avg(tier1) AS tier1,
    sum(tier2 * weight) / sum(weight) FILTER (tier2 IS NOT NULL) AS tier2,
    sum(tier2_5 * weight) / sum(weight) FILTER (tier2_5 IS NOT NULL) AS tier2_5,
    sum(tier3 * weight) / sum(weight) FILTER (tier3 IS NOT NULL) AS tier3,
    avg(tier2) AS tier2_unweighted, avg(tier3) AS tier3_unweighted,
    count(*) FILTER (anomaly) AS anomalies, count(*) FILTER (anomaly) / count(*) AS anomaly_rate, sum(cost_usd) AS cost_usd
FROM turns
GROUP BY project, agent, day;
COMMENT ON VIEW days IS 'One row per project, agent and day with exchanges. Means are weighted by the number of exchanges that each judged exchange represents.';
COMMENT ON COLUMN days.tier2_unweighted IS 'Unweighted mean of the judged exchanges; it changes with the sampling mix.';
COMMENT ON COLUMN days.tier3_unweighted IS 'Unweighted mean of the judged exchanges; it changes with the sampling mix.';
CREATE VIEW judge_calls AS
SELECT
    judged_at::DATE AS day, project, session_id, subject_id AS exchange_id, purpose AS tier,
    coalesce(answering_model, requested_model) AS model, outcome, attempts, cost_usd, latency_ms, input_tokens, output_tokens,
    cache_read_tokens, cache_write_tokens, batched, simulated, judged_at
FROM judgements;
COMMENT ON VIEW judge_calls IS 'One row per judge call, with its cost and outcome. The day is that of the call, not of the exchange.';
COMMENT ON COLUMN judge_calls.outcome IS 'answered, refused, cut_off, provider_error, timeout, invalid, partial, awaiting_batch, interrupted, or the cap that left no room: cost_cap, project_day_cap, project_month_cap, installation_day_cap or installation_month_cap.';
COMMENT ON COLUMN judge_calls.cost_usd IS 'Cost in USD; NULL if the price is unknown.';
CREATE VIEW human_scores AS
SELECT
    t.day, t.project, t.agent, t.session_id, t.exchange_id, r.subject_id AS score_id, r.reviewer AS rater, r.score AS human,
    t.tier3 AS judge, t.tier2, r.comment, r.occurred_at AS rated_at
FROM reviews AS r JOIN all_turns AS t ON t.score_id = r.subject_id
WHERE r.kind = 'human_score'
QUALIFY row_number() OVER (PARTITION BY r.subject_id, r.reviewer ORDER BY r.occurred_at DESC, r.review_id DESC) = 1;
COMMENT ON VIEW human_scores IS 'One row per exchange and rater: the rater''s last score (1 to 5), beside the judge''s.';
COMMENT ON COLUMN human_scores.judge IS 'The judge''s Tier 3 score, 1 to 5.';
CREATE VIEW session_summaries AS
SELECT
    t.project, t.agent, t."connection", t.session_id, min(t.exchange_at) AS started_at, max(t.exchange_at) AS ended_at,
    count(*) AS exchanges, count(*) FILTER (t.disposition = 'scored') AS judged, avg(t.tier1) AS tier1,
    sum(t.tier2 * t.weight) / sum(t.weight) FILTER (t.tier2 IS NOT NULL) AS tier2,
    sum(t.tier3 * t.weight) / sum(t.weight) FILTER (t.tier3 IS NOT NULL) AS tier3,
    count(*) FILTER (t.anomaly) AS anomalies, sum(t.cost_usd) AS cost_usd,
    any_value(d.trust_score) AS trust_score, any_value(d.primary_failure_type) AS failure
FROM turns AS t LEFT JOIN diagnoses AS d ON d."connection" = t."connection" AND d.session_id = t.session_id
GROUP BY ALL;
COMMENT ON VIEW session_summaries IS 'One row per session with exchanges: its means, anomalies and cost, and the diagnosis of its events.';
COMMENT ON COLUMN session_summaries.trust_score IS 'Trust score of the diagnosis; NULL if the session has no diagnosis or no runtime events.';
CREATE VIEW runs AS
SELECT
    coalesce(d.ended_at, d.closed_at)::DATE AS day, n.project, d.agent, printf('run_%03d', n.number) AS run_id, n."connection",
    n.session_id, d.trust_score, d.readiness_level AS readiness, d.primary_failure_type AS failure, d.primary_severity AS severity,
    d.failure_cause_count AS failures, d.event_count AS events, d.event_count = 0 AS exchanges_only, d.started_at, d.ended_at, d.closed_at, d.closed_reason
FROM log.run_numbers AS n JOIN diagnoses AS d ON d."connection" = n."connection" AND d.session_id = n.session_id;
COMMENT ON VIEW runs IS 'One row per run (a session that has ended), with its verdict and the id shown on the pages.';
COMMENT ON COLUMN runs.day IS 'Day on which the run ended, UTC.';
COMMENT ON COLUMN runs.run_id IS 'Id of the run within its project.';
COMMENT ON COLUMN runs.trust_score IS 'Trust score, 0 to 100; NULL for a run without runtime events.';
COMMENT ON COLUMN runs.events IS 'Number of runtime events; 0 if only exchanges were received.';
COMMENT ON COLUMN runs.exchanges_only IS 'Whether only exchanges were received: no runtime events, so no trust score.';
COMMENT ON COLUMN runs.failure IS 'Failure with the largest penalty; NULL if none was detected.';
CREATE VIEW run_dimensions AS
SELECT * EXCLUDE (one), one.dimension AS dimension, one.score AS score
FROM (
    SELECT r.day, r.project, r.agent, r.run_id, r."connection", r.session_id, unnest(d.dimensions) AS one
    FROM runs AS r JOIN diagnoses AS d ON d."connection" = r."connection" AND d.session_id = r.session_id
);
COMMENT ON VIEW run_dimensions IS 'One row per run and dimension of its diagnosis.';
COMMENT ON COLUMN run_dimensions.day IS 'Day on which the run ended, UTC.';
COMMENT ON COLUMN run_dimensions.score IS 'Score, 0 to 100; NULL if there is not enough evidence.';
CREATE VIEW evaluated_runs AS
SELECT
    coalesce(run_at, evaluated_at)::DATE AS day, project, agent, subject_model AS model, "connection", session_id, case_id, case_title,
    evaluation_id, status, final_score AS score, overall_spread AS spread, successful_iterations AS answers,
    configured_repetitions AS repetitions, judge_run_id, judge_model, yardstick, run_at, evaluated_at, run_seconds, run_cost_usd,
    cost_usd, warnings, anomaly_reasons, simulated
FROM evaluations
QUALIFY row_number() OVER (
    PARTITION BY "connection", session_id, case_id, yardstick
    ORDER BY status = 'completed' DESC, evaluated_at DESC, evaluation_id DESC
) = 1;
COMMENT ON VIEW evaluated_runs IS 'One row per run, case and yardstick: the newest finished evaluation of the run, or the newest if none finished.';
COMMENT ON COLUMN evaluated_runs.day IS 'Day on which the run ended, UTC.';
COMMENT ON COLUMN evaluated_runs.model IS 'Model of the audited agent.';
COMMENT ON COLUMN evaluated_runs.score IS 'The judge''s verdict, 0 to 10; NULL if every answer failed.';
COMMENT ON COLUMN evaluated_runs.spread IS 'Largest minus smallest verdict of the answers.';
COMMENT ON COLUMN evaluated_runs.yardstick IS 'Case, judge and prompt behind the score; compare only scores with the same yardstick.';
COMMENT ON COLUMN evaluated_runs.cost_usd IS 'Cost of judging in USD; NULL if a price is unknown.';
COMMENT ON COLUMN evaluated_runs.simulated IS 'Whether a simulated judge was used.';
CREATE VIEW evaluation_dimensions AS
SELECT * EXCLUDE (one), one.dimension AS dimension, one.policy AS policy, one.source AS source, one.deterministic AS deterministic,
    one.judge AS judge, one.final AS score, one.spread AS spread
FROM (
    SELECT r.day, r.project, r.model, r."connection", r.session_id, r.case_id, r.evaluation_id, r.yardstick, r.judge_model,
        unnest(e.dimensions) AS one
    FROM evaluated_runs AS r JOIN evaluations AS e USING (evaluation_id)
);
COMMENT ON VIEW evaluation_dimensions IS 'One row per evaluated run and dimension: the scores of the checks and of the judge, and the final score.';
COMMENT ON COLUMN evaluation_dimensions.deterministic IS '10 x passed / mapped checks; NULL if no check counts for the dimension.';
COMMENT ON COLUMN evaluation_dimensions.score IS 'Final score, 0 to 10; NULL if it is missing.';
COMMENT ON COLUMN evaluation_dimensions.source IS 'judge, deterministic, weighted or missing.';
CREATE VIEW evaluation_checks AS
SELECT * EXCLUDE (one), one.check_id AS check_id, one.kind AS kind, one.dimensions AS dimensions, one.outcome AS outcome,
    one.detail AS detail
FROM (
    SELECT r.day, r.project, r.model, r."connection", r.session_id, r.case_id, r.evaluation_id, r.yardstick, unnest(e.checks) AS one
    FROM evaluated_runs AS r JOIN evaluations AS e USING (evaluation_id)
);
COMMENT ON VIEW evaluation_checks IS 'One row per evaluated run and deterministic check.';
COMMENT ON COLUMN evaluation_checks.outcome IS 'pass, fail or error.';
CREATE VIEW evaluation_iterations AS
SELECT * EXCLUDE (one), one.iteration AS iteration, one.outcome AS outcome, one.overall AS overall, one.judgement_id AS judgement_id
FROM (
    SELECT r.day, r.project, r.model, r."connection", r.session_id, r.case_id, r.evaluation_id, r.yardstick, r.judge_model,
        unnest(e.iterations) AS one
    FROM evaluated_runs AS r JOIN evaluations AS e USING (evaluation_id)
);
COMMENT ON VIEW evaluation_iterations IS 'One row per evaluated run and answer of the judge, valid or not.';
COMMENT ON COLUMN evaluation_iterations.overall IS 'The verdict of this answer, 0 to 10; NULL if the answer is not valid.';
CREATE VIEW exchange_labels AS
SELECT day, project, agent, agent_model AS model, "connection", session_id, exchange_id, one.name AS label, one.value AS value
FROM (
    SELECT occurred_at::DATE AS day, project, agent, agent_model, "connection", session_id, exchange_id, unnest(labels) AS one FROM exchanges
);
COMMENT ON VIEW exchange_labels IS 'One row per exchange and label; join turns USING (connection, exchange_id) for its scores.';
COMMENT ON COLUMN exchange_labels.day IS 'Day of the exchange, UTC.';
COMMENT ON COLUMN exchange_labels.label IS 'Name of the label, such as agent_version or tenant.';
COMMENT ON COLUMN exchange_labels.value IS 'Value of the label.';
CREATE VIEW event_labels AS
SELECT day, project, agent, "connection", session_id, event_id, event, tool, one.name AS label, one.value AS value
FROM (
    SELECT occurred_at::DATE AS day, project, agent, "connection", session_id, event_id, event, tool, unnest(labels) AS one
    FROM agent_events
);
COMMENT ON VIEW event_labels IS 'One row per runtime event and label.';
COMMENT ON COLUMN event_labels.day IS 'Day of the event, UTC.';
COMMENT ON COLUMN event_labels.label IS 'Name of the label, such as tool_version.';
COMMENT ON COLUMN event_labels.value IS 'Value of the label.';
CREATE VIEW failure_groups AS
SELECT
    project, failure_group, arg_min(name, first_at) AS name, any_value(kind) AS kind, any_value(cause) AS cause, any_value(tool) AS tool,
    arg_min(error, (first_at, error)) AS error, sum(sessions)::BIGINT AS sessions,
    coalesce(sum(sessions) FILTER (day > last_day - INTERVAL 7 DAY), 0)::BIGINT AS sessions_7_days,
    coalesce(sum(sessions) FILTER (day <= last_day - INTERVAL 7 DAY AND day > last_day - INTERVAL 14 DAY), 0)::BIGINT AS sessions_7_days_before,
    sum(runs)::BIGINT AS runs, sum(exchanges)::BIGINT AS exchanges, sum(wasted_tokens)::BIGINT AS wasted_tokens,
    min(first_at) AS first_at, max(last_at) AS last_at, arg_max(examples, (last_at, error)) AS examples
FROM (SELECT *, max(day) OVER (PARTITION BY project) AS last_day FROM daily_failures)
GROUP BY project, failure_group;
COMMENT ON VIEW failure_groups IS 'One row per project and group of failures: runs that are not ready and exchanges with an anomaly, by tool and error or by cause. daily_failures has them by day.';
COMMENT ON COLUMN failure_groups.name IS 'Name of the group, made of its parts.';
COMMENT ON COLUMN failure_groups.error IS 'Error of the first failure; numbers, ids, paths, hosts, times and quoted values are placeholders.';
COMMENT ON COLUMN failure_groups.sessions IS 'Sessions, each counted once per UTC day.';
COMMENT ON COLUMN failure_groups.sessions_7_days IS 'Sessions of the last 7 days, up to the project''s last day with a failure.';
COMMENT ON COLUMN failure_groups.sessions_7_days_before IS 'Sessions of the 7 days before.';
COMMENT ON COLUMN failure_groups.wasted_tokens IS 'Tokens of its exchanges, or the wasted tokens of its runs, whichever is more in a session.';
COMMENT ON COLUMN failure_groups.examples IS 'The newest three of the last day.';
-- Views with the names, columns and types of TangleClaw's SQLite tables (decision 148): times and JSON are texts, flags are 0 or 1.
-- They have no further columns, because a name that only one of two joined tables has must stay unambiguous.
CREATE VIEW eval_exchanges AS
SELECT
    id, session_id, connection_id, project, agent_model, "timestamp",
    -- A snapshot has no texts, so there a statement that names one fails instead of finding nothing. turn_number is always there.
    COLUMNS(lambda name: name IN ('turn_number', 'user_message', 'agent_response', 'agent_thinking')),
    usage_input_tokens, usage_output_tokens,
    CASE
        WHEN disposition IS NULL THEN 0
        WHEN disposition = 'skipped_cost_cap' THEN 3
        WHEN disposition = 'sampling_skip' AND len(tier1_flags) = 0 THEN 2
        ELSE 1
    END AS scored,
    created_at
FROM (
    SELECT
        *, exchange_id AS id, "connection" AS connection_id, strftime(occurred_at, '%Y-%m-%dT%H:%M:%S.%gZ') AS "timestamp",
        input_tokens AS usage_input_tokens, output_tokens AS usage_output_tokens,
        strftime(ingested_at, '%Y-%m-%d %H:%M:%S') AS created_at
    FROM exchanges
    WHERE NOT starts_with(project, 'anchors.')
) AS e
LEFT JOIN (SELECT "connection" AS connection_id, exchange_id, disposition, tier1_flags FROM scores) AS s USING (connection_id, exchange_id);
COMMENT ON VIEW eval_exchanges IS 'The exchanges, as TangleClaw has them; user_message, agent_response and agent_thinking only in the file, not in a snapshot.';
COMMENT ON COLUMN eval_exchanges.id IS 'Id of the exchange, unique within its connection.';
COMMENT ON COLUMN eval_exchanges."timestamp" IS 'Time of the exchange, UTC, as text: 2026-10-01T09:00:00.000Z.';
COMMENT ON COLUMN eval_exchanges.turn_number IS 'As delivered; NULL if it was missing.';
COMMENT ON COLUMN eval_exchanges.scored IS '0 pending, 1 scored (it has a row in eval_scores), 2 left out by sampling, 3 left out by a cost cap.';
COMMENT ON COLUMN eval_exchanges.created_at IS 'Time at which it was taken in, UTC, as text: 2026-10-01 09:00:05.';
CREATE VIEW eval_scores AS
SELECT
    score_id AS id, exchange_id, methodology_version AS schema_version, coalesce(judge_model, 'structural') AS judge_model,
    strftime(scored_at, '%Y-%m-%dT%H:%M:%S.%gZ') AS scored_at,
    tier1_score AS tier_1_structural_score, to_json(tier1_flags)::VARCHAR AS tier_1_flags,
    CASE WHEN tier2_state = 'scored' THEN tier2_score END AS tier_2_semantic_score,
    CASE
        WHEN tier2_state = 'scored' THEN array_to_string([d.dimension || ': ' || coalesce(d.reasoning, '') FOR d IN tier2_dimensions], '; ')
    END AS tier_2_reasoning,
    (tier2_state <> 'scored')::INTEGER AS tier_2_skipped,
    CASE WHEN tier2_5_state = 'scored' THEN tier2_5_alignment END AS tier_2_5_alignment_score,
    CASE WHEN tier2_5_state = 'scored' THEN tier2_5_reasoning END AS tier_2_5_reasoning,
    (tier2_5_state <> 'scored')::INTEGER AS tier_2_5_skipped,
    CASE WHEN tier3_state = 'scored' THEN tier3_score END AS tier_3_behavioral_score,
    CASE
        WHEN tier3_state = 'scored'
            THEN to_json(map_from_entries([
                {'name': d.dimension, 'value': {'score': d.score, 'reasoning': d.reasoning}} FOR d IN tier3_dimensions
            ]))::VARCHAR
    END AS tier_3_dimension_scores,
    (tier3_state <> 'scored')::INTEGER AS tier_3_skipped,
    anomaly::INTEGER AS anomaly_flag, nullif(array_to_string(anomaly_reasons, '; '), '') AS anomaly_reason,
    cost_usd, human_score, human_comment, human_scored_at, strftime(scores.scored_at, '%Y-%m-%d %H:%M:%S') AS created_at
FROM scores
LEFT JOIN (
    SELECT
        subject_id AS score_id, arg_max(score, (occurred_at, review_id))::DOUBLE AS human_score,
        arg_max_null(comment, (occurred_at, review_id)) AS human_comment,
        strftime(max(occurred_at), '%Y-%m-%dT%H:%M:%S.%gZ') AS human_scored_at
    FROM reviews
    WHERE kind = 'human_score' AND score IS NOT NULL
    GROUP BY subject_id
) USING (score_id)
WHERE NOT starts_with(project, 'anchors.') AND (disposition IN ('scored', 'unscored') OR len(tier1_flags) > 0);
COMMENT ON VIEW eval_scores IS 'The scores, as TangleClaw has them: exchanges that were sampled or have a flag, each in its latest revision.';
COMMENT ON COLUMN eval_scores.schema_version IS 'Version of the methodology.';
COMMENT ON COLUMN eval_scores.judge_model IS 'Model that judged; structural if only Tier 1 is scored.';
COMMENT ON COLUMN eval_scores.scored_at IS 'Time of the newest record behind the score, UTC, as text; drift goes by the exchange''s timestamp.';
COMMENT ON COLUMN eval_scores.tier_1_flags IS 'JSON array of the checks that fired.';
COMMENT ON COLUMN eval_scores.tier_2_reasoning IS 'The judge''s reasoning, as dimension: reasoning; dimension: reasoning.';
COMMENT ON COLUMN eval_scores.tier_2_skipped IS '1 if the tier is not scored for any reason, a failed judge included.';
COMMENT ON COLUMN eval_scores.tier_2_5_skipped IS '1 if the tier is not scored for any reason.';
COMMENT ON COLUMN eval_scores.tier_3_dimension_scores IS 'JSON object: score and reasoning by dimension.';
COMMENT ON COLUMN eval_scores.tier_3_skipped IS '1 if the tier is not scored for any reason.';
COMMENT ON COLUMN eval_scores.anomaly_reason IS 'Reasons, separated by semicolons.';
COMMENT ON COLUMN eval_scores.cost_usd IS 'Cost of judging in USD; 0 without a judge, NULL if a price is unknown.';
COMMENT ON COLUMN eval_scores.human_score IS 'The newest human score, 1 to 5, of all raters.';
COMMENT ON COLUMN eval_scores.created_at IS 'scored_at, as text without fractions of a second.';
CREATE VIEW eval_baselines AS
SELECT
    baseline_id AS id, project, strftime(computed_at, '%Y-%m-%dT%H:%M:%S.%gZ') AS computed_at,
    strftime(window_start, '%Y-%m-%dT%H:%M:%S.%gZ') AS window_start, strftime(window_end, '%Y-%m-%dT%H:%M:%S.%gZ') AS window_end,
    to_json({
        'tier1': {'avg': tier1.mean, 'stddev': tier1.stddev, 'count': tier1.count},
        'tier2': {'avg': tier2.mean, 'stddev': tier2.stddev, 'count': tier2.count},
        'tier2_5': {'avg': tier2_5.mean, 'stddev': tier2_5.stddev, 'count': tier2_5.count},
        'tier3': {'avg': tier3.mean, 'stddev': tier3.stddev, 'count': tier3.count},
        'anomalyRate': anomaly_rate
    })::VARCHAR AS dimension_averages,
    exchange_count, '1' AS schema_version
FROM baselines
WHERE NOT starts_with(project, 'anchors.');
COMMENT ON VIEW eval_baselines IS 'The baselines, as TangleClaw has them.';
COMMENT ON COLUMN eval_baselines.dimension_averages IS 'JSON object: avg, stddev and count of tier1, tier2, tier2_5 and tier3, and anomalyRate; not rounded.';
COMMENT ON COLUMN eval_baselines.exchange_count IS 'Exchanges in the window, judged or not.';
COMMENT ON COLUMN eval_baselines.schema_version IS 'Version of the form of dimension_averages; always 1.';
CREATE VIEW eval_incidents AS
SELECT
    incident_id AS id, project, type,
    CASE status WHEN 'acknowledged' THEN 'accepted' WHEN 'resolved' THEN 'accepted' ELSE status END AS status,
    severity, title, description,
    json_merge_patch(metadata, json_object(
        'tierAffected', tier, 'direction', direction, 'baselineId', baseline_id,
        'deviationAmount', (metadata ->> '$.rules.consecutive_days.deviation')::DOUBLE * (metadata ->> '$.rules.consecutive_days.stddev')::DOUBLE,
        'dayCount', json_array_length(metadata, '$.rules.consecutive_days.days'),
        'baselineAvg', (metadata ->> '$.rules.consecutive_days.mean')::DOUBLE,
        'baselineStddev', (metadata ->> '$.rules.consecutive_days.stddev')::DOUBLE,
        'recentAnomalyRate', (metadata ->> '$.rules.rate_ratio.rate')::DOUBLE,
        'baselineAnomalyRate', (metadata ->> '$.rules.rate_ratio.baselineRate')::DOUBLE,
        'recentExchangeCount', (metadata ->> '$.rules.rate_ratio.exchanges')::BIGINT
    ))::VARCHAR AS metadata,
    strftime(detected_at, '%Y-%m-%dT%H:%M:%S.%gZ') AS detected_at,
    CASE WHEN status <> 'open' THEN strftime(coalesce(resolved_at, acknowledged_at), '%Y-%m-%dT%H:%M:%S.%gZ') END AS resolved_at,
    CASE WHEN status <> 'open' THEN coalesce(resolved_by, acknowledged_by) END AS resolved_by,
    strftime(incidents.detected_at, '%Y-%m-%d %H:%M:%S') AS created_at
FROM incidents
WHERE NOT starts_with(project, 'anchors.');
COMMENT ON VIEW eval_incidents IS 'The incidents, as TangleClaw has them.';
COMMENT ON COLUMN eval_incidents.status IS 'open, accepted (here: acknowledged or resolved) or dismissed.';
COMMENT ON COLUMN eval_incidents.severity IS 'notice (only the judge changed; TangleClaw has none), warning or critical.';
COMMENT ON COLUMN eval_incidents.metadata IS 'JSON object: the evidence, with TangleClaw''s members that the rules observed beside it.';
COMMENT ON COLUMN eval_incidents.resolved_at IS 'Time at which it was acknowledged, resolved or dismissed, UTC, as text.';
COMMENT ON COLUMN eval_incidents.created_at IS 'detected_at, as text without fractions of a second.';
