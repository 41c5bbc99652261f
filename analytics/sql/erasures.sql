-- purpose: who asked for whose records to be erased, and what this database has done of it
-- grain: one row per erasure, newest first; state is null where it is still to be done
-- parameters: none
SELECT e.*, s.state
FROM erasures AS e
LEFT JOIN log.stage_state AS s ON s.stage = 'erasure' AND s.key = e.erasure_id
ORDER BY e.occurred_at DESC, e.erasure_id DESC
