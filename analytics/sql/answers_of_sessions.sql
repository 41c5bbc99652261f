-- purpose: the first answer that the judge ever gave to each of some questions about sessions, whatever it was asked for
-- grain: one row per question that was answered, with the columns of its record
-- parameters: $questions (list of {connection, session_id, fingerprint}), $simulated (whether answers of a simulated judge count)
WITH wanted AS (
    SELECT unnest($questions::STRUCT(connection VARCHAR, session_id VARCHAR, fingerprint VARCHAR)[], recursive := true)
)
SELECT j.* EXCLUDE (_topic, _partition, _offset)
FROM log.judgements AS j
SEMI JOIN wanted USING (connection, session_id, fingerprint)
WHERE j.outcome = 'answered' AND ($simulated OR NOT j.simulated)
QUALIFY row_number() OVER (PARTITION BY fingerprint ORDER BY judged_at, judgement_id) = 1
ORDER BY fingerprint
