-- purpose: requests for erasure and their state in this database
-- grain: one row per erasure, newest first. state: NULL until it is carried out
-- parameters: none
SELECT e.*, s.state
FROM erasures AS e
LEFT JOIN log.stage_state AS s ON s.stage = 'erasure' AND s.key = e.erasure_id
ORDER BY e.occurred_at DESC, e.erasure_id DESC
