-- purpose: the cost of judging the exchanges of a period, by hour or day and model, or by session, so that it covers
--     the same exchanges as the charts beside it
-- grain: one row per UTC hour or day and model, or per session. period: start of the hour or day; judgements without
--     a stored exchange (of evaluations or anchors) count on the day of the answer; cost_usd: sum of the known costs,
--     including simulated ones, NULL if all are unknown
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
