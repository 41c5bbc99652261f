-- purpose: the judge's first answer to each of the given questions about sessions, for any purpose
-- grain: one row per answered question, with the columns of its record
-- parameters: $questions (list of {connection, session_id, fingerprint}), $simulated (whether to include answers of a
--     simulated judge)
WITH requested AS (
    SELECT unnest($questions::STRUCT(connection VARCHAR, session_id VARCHAR, fingerprint VARCHAR)[], recursive := true)
)
SELECT j.* EXCLUDE (_topic, _partition, _offset)
FROM log.judgements AS j
SEMI JOIN requested USING (connection, session_id, fingerprint)
WHERE j.outcome = 'answered' AND ($simulated OR NOT j.simulated)
QUALIFY row_number() OVER (PARTITION BY fingerprint ORDER BY judged_at, judgement_id) = 1
ORDER BY fingerprint
