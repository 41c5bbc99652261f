-- purpose: one run of a project, by its number or by its session, with its diagnosis
-- grain: one row if the run exists: its current diagnosis with the columns of its record. exchanges_only: it has no
--     runtime events and so no trust score; last_at: the end of the run, or its closing if the end is unknown
-- parameters: $project, $number (NULL: by session), $connection and $session (NULL: by number), $place (offset of the
--     diagnosis in its topic; NULL: unknown)
WITH numbered AS (
    SELECT connection, session_id, number
    FROM log.run_numbers
    WHERE project = $project AND ($number IS NULL OR number = $number)
        AND ($session IS NULL OR session_id = $session) AND ($connection IS NULL OR connection = $connection)
)
SELECT
    number, printf('run_%03d', number) AS run_id, coalesce(ended_at, closed_at) AS last_at,
    coalesce(list_sum([c.count FOR c IN event_counts IF c.event = 'tool_call']), 0)::BIGINT AS tool_calls,
    event_count = 0 AS exchanges_only,
    d.* EXCLUDE (_topic, _partition, _offset) REPLACE ($project AS project)
FROM log.diagnoses AS d
JOIN numbered USING (connection, session_id)
WHERE $place IS NULL OR _offset = $place
QUALIFY row_number() OVER (ORDER BY revision DESC, _offset DESC) = 1
