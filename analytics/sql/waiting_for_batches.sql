-- purpose: how many exchanges wait for a batch, and since when
-- grain: one row, if any waits
-- parameters: $revisions (how much higher the revision with the answers of a batch is)
SELECT count(*) AS exchanges, min(judged_at) AS since
FROM judgements AS j
ANTI JOIN log.scores AS s
    ON s.connection = j.connection AND s.exchange_id = j.subject_id AND s.revision >= j.subject_revision + $revisions
WHERE j.outcome = 'awaiting_batch'
HAVING count(*) > 0
