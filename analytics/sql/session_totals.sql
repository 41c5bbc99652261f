-- purpose: the totals of a session: agents, models, labels, scores and costs
-- grain: one row, none without exchanges, events and scores. Means cover the scored turns; input_tokens,
--     output_tokens: of the turns that report them; judge_usd: known costs of the current scores; question: an excerpt of
--     the first question; tool_ms, timed_calls: total and number of the reported durations of tool calls
-- parameters: $project, $connection, $session, $since and $until (first and last event time of the session, both
--     inclusive)
WITH turns AS (
    SELECT agent, agent_model, input_tokens, output_tokens, outcome, multi_user, labels, occurred_at, left(user_message, 800) AS beginning
    FROM log.current_exchanges
    WHERE session_id = $session AND connection = $connection AND project = $project
        AND occurred_at >= $since::TIMESTAMP AND occurred_at <= $until::TIMESTAMP
), judged AS (
    SELECT
        agent, disposition, anomaly, tier1_flags, tier1_score, cost_usd, simulated,
        CASE WHEN tier2_state = 'scored' THEN tier2_score END AS tier2,
        CASE WHEN tier2_5_state = 'scored' THEN tier2_5_alignment END AS tier2_5,
        CASE WHEN tier3_state = 'scored' THEN tier3_score END AS tier3
    FROM log.scores
    WHERE session_id = $session AND connection = $connection AND project = $project
        AND exchange_at >= $since::TIMESTAMP AND exchange_at <= $until::TIMESTAMP
    QUALIFY row_number() OVER (PARTITION BY score_id ORDER BY revision DESC, _offset DESC) = 1
), session_events AS (
    SELECT
        agent, event, tokens, labels, payload,
        CASE WHEN event = 'tool_output' THEN TRY_CAST(TRY(json_extract_string(payload, '$.duration_ms')) AS DOUBLE) END AS tool_ms
    FROM log.agent_events
    WHERE session_id = $session AND connection = $connection AND project = $project
        AND occurred_at >= $since::TIMESTAMP AND occurred_at <= $until::TIMESTAMP
), labels AS (
    SELECT DISTINCT unnest(labels) AS label FROM turns
    UNION
    SELECT DISTINCT unnest(labels) AS label FROM session_events
), agents AS (
    SELECT agent FROM turns UNION SELECT agent FROM judged UNION SELECT agent FROM session_events
), turn_totals AS (
    SELECT
        count(*) AS exchanges, sum(input_tokens)::BIGINT AS input_tokens, sum(output_tokens)::BIGINT AS output_tokens,
        coalesce(list(DISTINCT agent_model ORDER BY agent_model) FILTER (agent_model IS NOT NULL), []) AS models,
        count(*) FILTER (outcome <> 'answered') AS unanswered, bool_or(multi_user) AS multi_user,
        log.excerpt(arg_min(beginning, occurred_at)) AS question
    FROM turns
), score_totals AS (
    SELECT
        count(*) AS scores, count(*) FILTER (disposition = 'scored') AS scored, count(*) FILTER (anomaly) AS anomalies,
        count(*) FILTER (len(tier1_flags) > 0) AS flagged,
        -- Sums of doubles depend on the order, and a mean halfway between two hundredths could be rounded either way.
        avg(tier1_score ORDER BY tier1_score) AS tier1, avg(tier2 ORDER BY tier2) AS tier2, avg(tier2_5 ORDER BY tier2_5) AS tier2_5,
        avg(tier3 ORDER BY tier3) AS tier3, sum(round(cost_usd * 1e9)::BIGINT) / 1e9 AS judge_usd,
        count(*) FILTER (cost_usd IS NULL AND disposition = 'scored') AS unknown_costs, count(*) FILTER (simulated) AS simulated
    FROM judged
), event_totals AS (
    SELECT
        count(*) AS events, count(*) FILTER (event = 'tool_call') AS tool_calls, sum(tokens)::BIGINT AS event_tokens,
        sum(tool_ms ORDER BY tool_ms) AS tool_ms, count(tool_ms) AS timed_calls,
        sum(CASE WHEN event = 'token_usage'
            THEN round(TRY_CAST(TRY(json_extract_string(payload, '$.usage.cost_usd')) AS DOUBLE) * 1e9)::BIGINT END) / 1e9 AS agent_usd
    FROM session_events
)
SELECT
    s.*, j.*, a.*,
    coalesce((SELECT list(agent ORDER BY agent) FROM agents WHERE agent IS NOT NULL), []) AS agents,
    coalesce((SELECT list(label ORDER BY label.name, label.value) FROM labels), []) AS labels
FROM turn_totals AS s, score_totals AS j, event_totals AS a
WHERE s.exchanges + j.scores + a.events > 0
