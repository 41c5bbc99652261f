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
    CASE WHEN $by = 'day' THEN judged_at::DATE END AS day,
    CASE WHEN $by = 'model' THEN requested_model END AS model,
    count(*) AS judgements, sum(attempts)::BIGINT AS calls,
    coalesce(sum(input_tokens), 0)::BIGINT AS input_tokens, coalesce(sum(output_tokens), 0)::BIGINT AS output_tokens,
    coalesce(sum(cache_write_tokens), 0)::BIGINT AS cache_write_tokens,
    coalesce(sum(cache_read_tokens), 0)::BIGINT AS cache_read_tokens,
    sum(round(cost_usd * 1e9)::BIGINT) / 1e9 AS cost_usd, count(*) FILTER (cost_usd IS NULL) AS unknown_costs,
    count(*) FILTER (simulated) AS simulated
FROM judgements
WHERE ($project IS NULL OR project = $project)
    AND ($from IS NULL OR judged_at >= $from::TIMESTAMP) AND ($to IS NULL OR judged_at < $to::TIMESTAMP)
GROUP BY ALL
ORDER BY day, cost_usd DESC NULLS LAST, project, connection, session_id, model
