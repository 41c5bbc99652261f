-- purpose: the turn number and the sampling decision of the given exchanges, from the newest task or score of each
-- grain: one row per exchange with a decision. revision: the highest revision of its scores, tasks and requests
-- parameters: $exchanges (list of {connection, exchange_id})
WITH requested_exchanges AS (
    SELECT unnest($exchanges::STRUCT(connection VARCHAR, exchange_id VARCHAR)[], recursive := true)
), decisions AS (
    SELECT connection, exchange_id, revision, turn_number, sampling_reason, sampling_probability
    FROM log.scoring_tasks
    SEMI JOIN requested_exchanges USING (connection, exchange_id)
    UNION ALL
    SELECT connection, exchange_id, revision, turn_number, sampling_reason, coalesce(sampling_probability, 0) AS sampling_probability
    FROM log.scores
    SEMI JOIN requested_exchanges USING (connection, exchange_id)
), requests AS (
    SELECT connection, exchange_id, max(revision) AS requested
    FROM log.judging_requests
    SEMI JOIN requested_exchanges USING (connection, exchange_id)
    GROUP BY connection, exchange_id
)
SELECT
    connection, exchange_id, greatest(max(revision), coalesce(any_value(requested), 0)) AS revision,
    arg_max(turn_number, revision) AS turn_number, arg_max(sampling_reason, revision) AS sampling_reason,
    arg_max(sampling_probability, revision) AS sampling_probability
FROM decisions
LEFT JOIN requests USING (connection, exchange_id)
GROUP BY connection, exchange_id
ORDER BY connection, exchange_id
