-- purpose: which run of its project a session is
-- grain: one row for a session that is finalized
-- parameters: $connection, $session
SELECT project, printf('run_%03d', number) AS run_id
FROM log.run_numbers
WHERE connection = $connection AND session_id = $session
ORDER BY project
