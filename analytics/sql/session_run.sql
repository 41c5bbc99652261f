-- purpose: the run that a session became
-- grain: one row if the session is finalized
-- parameters: $connection, $session
SELECT project, printf('run_%03d', number) AS run_id
FROM log.run_numbers
WHERE connection = $connection AND session_id = $session
ORDER BY project
