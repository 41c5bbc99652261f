-- purpose: the cost of judging per UTC day of the judge's answer, as on the provider's bill, by requested model
-- grain: one row per project, day and model. cost_usd: sum of the known costs, including simulated ones; NULL if all
--     are unknown
-- parameters: $project (NULL: all), $as_of (exclusive end), $days (number of UTC days; the last may be incomplete)
SELECT
    project, answered_at::DATE AS day, model,
    sum(judgements)::BIGINT AS judgements, sum(calls)::BIGINT AS calls,
    coalesce(sum(input_tokens), 0)::BIGINT AS input_tokens, coalesce(sum(output_tokens), 0)::BIGINT AS output_tokens,
    coalesce(sum(cache_write_tokens), 0)::BIGINT AS cache_write_tokens,
    coalesce(sum(cache_read_tokens), 0)::BIGINT AS cache_read_tokens,
    sum(nano_usd)::BIGINT / 1e9 AS cost_usd, sum(unknown_costs)::BIGINT AS unknown_costs,
    sum(simulated)::BIGINT AS simulated
FROM log.answer_costs()
WHERE ($project IS NULL OR project = $project)
    AND answered_at >= log.first_day_of($as_of::TIMESTAMP, $days) AND answered_at < $as_of::TIMESTAMP
GROUP BY ALL
ORDER BY project, day, model
