-- purpose: the runs that were finished before and after one of a project
-- grain: one row where the project has runs; previous_id and following_id: NULL where there is none
-- parameters: $project, $number (of the run)
SELECT
    printf('run_%03d', max(number) FILTER (number < $number)) AS previous_id,
    printf('run_%03d', min(number) FILTER (number > $number)) AS following_id
FROM log.run_numbers
WHERE project = $project
HAVING count(*) > 0
