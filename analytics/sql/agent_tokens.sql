-- purpose: the tokens that the models of the agents used, by hour or day, project, agent, version and model
-- grain: one row per UTC hour or day, project, agent, version and model; each of the last three is NULL where unknown.
--     exchanges: all of them; unknown_tokens: those whose source tells no tokens or only one number, which the sums
--     leave out; input_tokens: including those from and for a cache
-- parameters: $project (NULL: all except anchor projects), $by (hour or day), $from (inclusive) and $to (exclusive) of the time of the exchange
WITH turns AS (
    SELECT
        date_trunc($by, occurred_at) AS period, project, agent, agent_model AS model,
        list_filter(labels, lambda item: item.name = 'agent_version')[1].value AS version,
        input_tokens, output_tokens, input_tokens IS NOT NULL AND output_tokens IS NOT NULL AS is_known
    FROM log.current_exchanges
    WHERE log.matches_project(project, $project) AND occurred_at >= $from::TIMESTAMP AND occurred_at < $to::TIMESTAMP
)
SELECT
    period, project, agent, version, model, count(*) AS exchanges, count(*) FILTER (NOT is_known) AS unknown_tokens,
    coalesce(sum(input_tokens) FILTER (is_known), 0)::BIGINT AS input_tokens,
    coalesce(sum(output_tokens) FILTER (is_known), 0)::BIGINT AS output_tokens
FROM turns
GROUP BY ALL
ORDER BY period, project, agent, version, model
