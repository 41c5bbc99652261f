-- purpose: the evaluations of a project with their scores, filtered, sorted and paged
-- grain: one row per evaluation in its latest finished revision, or its latest if none finished. sort_number,
--     sort_text, sort_id: sort keys
-- parameters: $project, $since (inclusive) and $until (exclusive) of the evaluation (NULL: unbounded), $case, $model
--     (of the audited agent), $agent ('' for unnamed), $judge (model that judged; the last four NULL: any), $failed
--     (true: only evaluations without a score, false: only those with one; NULL: any), $least and $most (inclusive
--     bounds of the final score; NULL: unbounded), $sort (at, case, session, score, spread, model, judge, warnings or
--     cost), $down (true: descending), $last_number, $last_text, $last_id (sort keys of the last row already listed;
--     NULL: first page), $limit
WITH current AS (
    SELECT *
    FROM log.evaluations
    WHERE project = $project AND ($case IS NULL OR case_id = $case) AND ($model IS NULL OR subject_model = $model)
    QUALIFY row_number() OVER (PARTITION BY evaluation_id ORDER BY status = 'completed' DESC, revision DESC, _offset DESC) = 1
), filtered AS (
    SELECT
        evaluation_id, case_title, case_id, session_id, connection, agent, final_score,
        CASE WHEN successful_iterations > 1 THEN overall_spread END AS spread, subject_model, judge_model, successful_iterations,
        configured_repetitions, len(warnings) AS warning_count, anomaly_reasons, cost_usd, simulated, evaluated_at,
        CASE $sort
            WHEN 'at' THEN epoch_us(evaluated_at)::DOUBLE WHEN 'score' THEN final_score WHEN 'spread' THEN spread
            WHEN 'warnings' THEN warning_count::DOUBLE WHEN 'cost' THEN cost_usd
        END AS sort_number,
        CASE $sort
            WHEN 'case' THEN case_title WHEN 'session' THEN session_id WHEN 'model' THEN subject_model WHEN 'judge' THEN judge_model
        END AS sort_text,
        evaluation_id AS sort_id
    FROM current
    WHERE ($since IS NULL OR evaluated_at >= $since::TIMESTAMP) AND ($until IS NULL OR evaluated_at < $until::TIMESTAMP)
        AND ($agent IS NULL OR coalesce(agent, '') = $agent) AND ($judge IS NULL OR judge_model = $judge)
        AND ($failed IS NULL OR (final_score IS NULL) = $failed)
        AND ($least IS NULL OR final_score >= $least) AND ($most IS NULL OR final_score <= $most)
)
SELECT *
FROM filtered
WHERE log.listed_after($down, sort_number, sort_text, sort_id, $last_number, $last_text, $last_id)
ORDER BY
    sort_number IS NULL AND sort_text IS NULL, CASE WHEN $down THEN -sort_number ELSE sort_number END,
    CASE WHEN NOT $down THEN sort_text END, CASE WHEN $down THEN sort_text END DESC, sort_id
LIMIT $limit
