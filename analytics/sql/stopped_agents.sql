-- purpose: agents that had exchanges on most days and have none recently, while their project continues
-- grain: one row per project and agent. last_day: last day with an exchange; days: days with exchanges among the 14
--     before the last 3
-- parameters: $projects (list), $as_of (the last of the last 3 days)
WITH days AS (
    SELECT project, agent, day::DATE AS day
    FROM log.score_days(NULL, $as_of::TIMESTAMP - INTERVAL 17 DAY, $as_of::TIMESTAMP + INTERVAL 1 DAY)
    WHERE
        list_contains($projects::VARCHAR[], project) AND agent <> ''
        AND day::DATE > $as_of::DATE - 17 AND day::DATE <= $as_of::DATE AND exchanges > 0
    GROUP BY ALL
), active AS (
    SELECT DISTINCT project
    FROM days
    WHERE day > $as_of::DATE - 3
)

SELECT
    project,
    agent,
    max(day) AS last_day,
    count(*) AS days
FROM days
SEMI JOIN active USING (project)
GROUP BY project, agent
HAVING max(day) <= $as_of::DATE - 3 AND count(*) >= 7
ORDER BY project, agent
