-- purpose: what judging cost day by day, by the day on which the judge answered (UTC), as on the provider's bill, and by the model that was asked
-- grain: one row per project, day and model; cost_usd: the sum of the known costs, simulated ones included; NULL where all are unknown
-- parameters: $project (NULL for all), $as_of (what was answered then or later is left out), $days (the last UTC days, of which the last one may not be over)
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
