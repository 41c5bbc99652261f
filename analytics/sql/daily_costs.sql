-- purpose: the cost of judging per UTC day of the judge's answer, as on the provider's bill, by requested model
-- grain: one row per project, day and model. cost_usd: sum of the known costs, including simulated ones; NULL if all
--     are unknown
-- parameters: $project (NULL: all), $as_of (exclusive end), $days (number of UTC days; the last may be incomplete)
SELECT
    project, judged_at::DATE AS day, requested_model AS model, count(*) AS judgements, sum(attempts)::BIGINT AS calls,
    coalesce(sum(input_tokens), 0)::BIGINT AS input_tokens, coalesce(sum(output_tokens), 0)::BIGINT AS output_tokens,
    coalesce(sum(cache_write_tokens), 0)::BIGINT AS cache_write_tokens,
    coalesce(sum(cache_read_tokens), 0)::BIGINT AS cache_read_tokens,
    sum(round(cost_usd * 1e9)::BIGINT) / 1e9 AS cost_usd, count(*) FILTER (cost_usd IS NULL) AS unknown_costs,
    count(*) FILTER (simulated) AS simulated
FROM judgements
WHERE ($project IS NULL OR project = $project)
    AND judged_at >= log.first_day_of($as_of::TIMESTAMP, $days) AND judged_at < $as_of::TIMESTAMP
GROUP BY ALL
ORDER BY project, day, model
