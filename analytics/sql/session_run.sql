-- purpose: the run that a session became
-- grain: one row where the session was finalized
-- parameters: $project, $connection, $session
SELECT number, printf('run_%03d', number) AS run_id
FROM log.run_numbers
WHERE project = $project AND connection = $connection AND session_id = $session
