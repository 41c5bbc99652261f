-- purpose: the current diagnosis of a session, by its id, in every connection that has one of that name
-- grain: one row a session
-- parameters: $session
SELECT * FROM diagnoses WHERE session_id = $session ORDER BY connection
