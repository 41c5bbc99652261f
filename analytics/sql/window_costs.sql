-- purpose: what judging some days' exchanges cost, whenever the judge answered, by day and model or by session: beside charts of these days it is of the same exchanges
-- grain: one row a day (UTC) and model, or a session; a question about no exchange (an evaluation, an anchor), or about one that is gone, counts on the day of its answer; cost_usd: the sum of the known costs, simulated ones included; NULL where all are unknown
-- parameters: $project, $by (day or session), $from (inclusive) and $to (exclusive) of the time of the exchange
WITH asked AS (
    -- No judge answers before there is something to judge.
    SELECT * FROM judgements WHERE project = $project AND judged_at >= $from::TIMESTAMP
), heard AS (
    SELECT connection, exchange_id AS subject_id, occurred_at AS counted_at
    FROM log.exchanges
    WHERE project = $project AND occurred_at >= $from::TIMESTAMP AND occurred_at < $to::TIMESTAMP
), placed AS (
    SELECT * FROM asked JOIN heard USING (connection, subject_id)
    UNION ALL BY NAME
    SELECT a.*, judged_at AS counted_at
    FROM asked AS a
    ANTI JOIN heard AS h ON h.connection = a.connection AND h.subject_id = a.subject_id
    WHERE judged_at < $to::TIMESTAMP AND NOT EXISTS (
        SELECT 1 FROM log.exchanges AS e
        WHERE e.project = $project AND e.connection = a.connection AND e.exchange_id = a.subject_id
    )
)
SELECT
    CASE WHEN $by = 'day' THEN counted_at::DATE END AS day, CASE WHEN $by = 'day' THEN requested_model END AS model,
    CASE WHEN $by = 'session' THEN connection END AS connection, CASE WHEN $by = 'session' THEN session_id END AS session_id,
    count(*) AS judgements, sum(attempts)::BIGINT AS calls,
    coalesce(sum(input_tokens), 0)::BIGINT AS input_tokens, coalesce(sum(output_tokens), 0)::BIGINT AS output_tokens,
    coalesce(sum(cache_write_tokens), 0)::BIGINT AS cache_write_tokens,
    coalesce(sum(cache_read_tokens), 0)::BIGINT AS cache_read_tokens,
    sum(round(cost_usd * 1e9)::BIGINT) / 1e9 AS cost_usd, count(*) FILTER (cost_usd IS NULL) AS unknown_costs,
    count(*) FILTER (simulated) AS simulated
FROM placed
GROUP BY ALL
ORDER BY day, cost_usd DESC NULLS LAST, connection, session_id, model
