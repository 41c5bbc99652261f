-- purpose: what judging some days' exchanges cost, whenever the judge answered, by hour or day and model, or by session: beside charts of these days it is of the same exchanges
-- grain: one row per hour or a day (UTC) and model, or a session; period: the beginning of the hour or day; a question about no exchange (an evaluation, an anchor), or about one that is gone, counts on the day of its answer; cost_usd: the sum of the known costs, simulated ones included; NULL where all are unknown
-- parameters: $project, $by (hour, day or session), $from (inclusive) and $to (exclusive) of the time of the exchange
SELECT
    CASE $by WHEN 'hour' THEN hour WHEN 'day' THEN date_trunc('day', hour) END::TIMESTAMP AS period,
    CASE WHEN $by <> 'session' THEN model END AS model,
    CASE WHEN $by = 'session' THEN connection END AS connection, CASE WHEN $by = 'session' THEN session_id END AS session_id,
    sum(judgements)::BIGINT AS judgements, sum(calls)::BIGINT AS calls,
    sum(input_tokens)::BIGINT AS input_tokens, sum(output_tokens)::BIGINT AS output_tokens,
    sum(cache_write_tokens)::BIGINT AS cache_write_tokens, sum(cache_read_tokens)::BIGINT AS cache_read_tokens,
    log.known_usd(sum(judgements), sum(unknown_costs), sum(nano_usd)) AS cost_usd, sum(unknown_costs)::BIGINT AS unknown_costs,
    sum(simulated)::BIGINT AS simulated
FROM log.cost_hours($project, $from::TIMESTAMP, $to::TIMESTAMP)
GROUP BY ALL
ORDER BY period, cost_usd DESC NULLS LAST, connection, session_id, model
