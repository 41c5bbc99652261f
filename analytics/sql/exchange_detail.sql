-- purpose: exchanges of a project by an id, whole, to be looked at, with the id of the score of each
-- grain: one row per connection that has an exchange of the id; score_id: NULL where there is no score yet
-- parameters: $project, $exchange (its id), $connection (NULL: whatever it is)
SELECT
    e.exchange_id, e.connection, e.project, e.agent, e.session_id, e.turn_number, e.occurred_at, e.ingested_at,
    e.user_message, e.agent_response, e.agent_thinking, e.agent_model, e.input_tokens, e.output_tokens, e.outcome, e.tags, e.labels,
    s.score_id
FROM exchanges AS e
LEFT JOIN scores AS s ON s.connection = e.connection AND s.exchange_id = e.exchange_id AND s.project = e.project
WHERE e.project = $project AND e.exchange_id = $exchange AND ($connection IS NULL OR e.connection = $connection)
ORDER BY e.connection
