-- purpose: the earlier turns that the tasks of the given exchanges carry, which the judge is shown
-- grain: one row per task of the exchanges, by revision. earlier_turns: list of {turn_number, user_message,
--     agent_response}
-- parameters: $exchanges (list of {connection, exchange_id})
WITH requested AS (
    SELECT unnest($exchanges::STRUCT(connection VARCHAR, exchange_id VARCHAR)[], recursive := true)
)
SELECT t.connection, t.exchange_id, t.revision, t.earlier_turns
FROM log.scoring_tasks AS t
SEMI JOIN requested USING (connection, exchange_id)
ORDER BY t.connection, t.exchange_id, t.revision, t._partition, t._offset
