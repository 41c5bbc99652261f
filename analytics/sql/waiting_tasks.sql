-- purpose: the tasks of exchanges that wait for a batch, with the columns of the record
-- grain: one row per waiting exchange: its newest task
-- parameters: $revisions (how much higher the revision with the answers of a batch is)
WITH waiting AS (
    SELECT connection, subject_id AS exchange_id, min(subject_revision) AS since
    FROM judgements
    WHERE outcome = 'awaiting_batch'
    GROUP BY connection, subject_id
), newest AS (
    SELECT t.connection, t.exchange_id, max(t.revision) AS revision
    FROM log.scoring_tasks AS t
    JOIN waiting AS w USING (connection, exchange_id)
    GROUP BY t.connection, t.exchange_id
    HAVING max(t.revision - w.since) < $revisions
)
SELECT t.* EXCLUDE (_topic, _partition, _offset)
FROM log.scoring_tasks AS t
SEMI JOIN newest USING (connection, exchange_id, revision)
QUALIFY row_number() OVER (PARTITION BY t.connection, t.exchange_id ORDER BY t._offset) = 1
ORDER BY t._offset
