-- purpose: which runs of a project some sessions are
-- grain: one row a session that is finalized
-- parameters: $project, $sessions (list of connection and session id with a slash between)
SELECT connection, session_id, printf('run_%03d', number) AS run_id
FROM log.run_numbers
WHERE project = $project AND list_contains($sessions::VARCHAR[], connection || '/' || session_id)
ORDER BY number
