-- purpose: the runs of a project that ended just before and after one of them
-- grain: one row where the project has the run; previous_id and following_id: NULL where there is none
-- parameters: $project, $number (of the run)
WITH ends AS (
    SELECT n.number, arg_max(coalesce(d.ended_at, d.closed_at), (d.revision, d._offset)) AS last_at
    FROM log.run_numbers AS n
    JOIN log.diagnoses AS d USING (connection, session_id)
    WHERE n.project = $project
    GROUP BY n.number
), beside AS (
    SELECT number, lag(number) OVER (ORDER BY last_at, number) AS previous, lead(number) OVER (ORDER BY last_at, number) AS following
    FROM ends
)
SELECT printf('run_%03d', previous) AS previous_id, printf('run_%03d', following) AS following_id
FROM beside
WHERE number = $number
