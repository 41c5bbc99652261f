-- purpose: the exchanges of a project with a given id, with the id of each one's score
-- grain: one row per connection with an exchange of the id. score_id: NULL before the first score
-- parameters: $project, $exchange (its id), $connection (NULL: any)
SELECT
    e.exchange_id, e.connection, e.project, e.agent, e.session_id, e.turn_number, e.occurred_at, e.ingested_at,
    e.user_message, e.agent_response, e.agent_thinking, e.agent_model, e.input_tokens, e.output_tokens, e.outcome, e.tags, e.labels,
    e.tool_calls, e.omitted_tool_calls, s.score_id
FROM exchanges AS e
LEFT JOIN scores AS s ON s.connection = e.connection AND s.exchange_id = e.exchange_id AND s.project = e.project
WHERE e.project = $project AND e.exchange_id = $exchange AND ($connection IS NULL OR e.connection = $connection)
ORDER BY e.connection
