-- purpose: a page of evaluations with their scores, newest first
-- grain: one row per evaluation in its latest finished revision, or its latest if none finished, even if its run was
--     evaluated again
-- parameters: $project, $case, $model (of the audited agent), $session (NULL: all), $agent ('' for
--     unnamed; NULL: all), $from (inclusive) and $to
--     (exclusive) of the time of the evaluation (NULL: unbounded), $after_at and $after_id (the last evaluation of
--     the previous page; NULL: first page), $limit
SELECT
    evaluation_id, revision, connection, project, session_id, agent, subject_model, case_id, case_title, tags, judge_run_id,
    judge_model, yardstick, repetition, status, final_score, overall_spread, dimensions, configured_repetitions,
    successful_iterations, aggregation_method, warnings, anomaly_reasons, run_at, run_seconds, run_input_tokens,
    run_output_tokens, run_cost_usd, cost_usd, simulated, evaluated_at, sampling_probability
FROM (
    SELECT *
    FROM log.evaluations
    WHERE ($project IS NULL OR project = $project) AND ($case IS NULL OR case_id = $case)
        AND ($model IS NULL OR subject_model = $model) AND ($session IS NULL OR session_id = $session)
        AND ($agent IS NULL OR coalesce(agent, '') = $agent)
    QUALIFY row_number() OVER (PARTITION BY evaluation_id ORDER BY status = 'completed' DESC, revision DESC, _offset DESC) = 1
)
WHERE ($after_at IS NULL OR (evaluated_at, evaluation_id) < ($after_at::TIMESTAMP, $after_id))
    AND ($from IS NULL OR evaluated_at >= $from::TIMESTAMP) AND ($to IS NULL OR evaluated_at < $to::TIMESTAMP)
ORDER BY evaluated_at DESC, evaluation_id DESC
LIMIT $limit
