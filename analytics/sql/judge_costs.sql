-- purpose: the cost of judging, grouped by session, project, UTC day of the judge's answer (as on the provider's
--     bill) or requested model
-- grain: one row per group. project, connection, session_id, day and model are NULL unless they define the group;
--     cost_usd: sum of the known costs, including simulated ones
-- parameters: $by (session, project, day or model; anything else: one row in total), $project (NULL: all), $from
--     (inclusive) and $to (exclusive) of the time of the answer (NULL: unbounded)
SELECT
    CASE WHEN $by IN ('session', 'project') THEN project END AS project,
    CASE WHEN $by = 'session' THEN connection END AS connection,
    CASE WHEN $by = 'session' THEN session_id END AS session_id,
    CASE WHEN $by = 'day' THEN answered_at::DATE END AS day,
    CASE WHEN $by = 'model' THEN model END AS model,
    sum(judgements)::BIGINT AS judgements, sum(calls)::BIGINT AS calls,
    coalesce(sum(input_tokens), 0)::BIGINT AS input_tokens, coalesce(sum(output_tokens), 0)::BIGINT AS output_tokens,
    coalesce(sum(cache_write_tokens), 0)::BIGINT AS cache_write_tokens,
    coalesce(sum(cache_read_tokens), 0)::BIGINT AS cache_read_tokens,
    sum(nano_usd)::BIGINT / 1e9 AS cost_usd, sum(unknown_costs)::BIGINT AS unknown_costs,
    sum(simulated)::BIGINT AS simulated
FROM log.answer_costs()
WHERE ($project IS NULL OR project = $project)
    AND ($from IS NULL OR answered_at >= $from::TIMESTAMP) AND ($to IS NULL OR answered_at < $to::TIMESTAMP)
GROUP BY ALL
ORDER BY day, cost_usd DESC NULLS LAST, project, connection, session_id, model
