-- purpose: the number of sessions with exchanges that a list without other filters has on all its pages
-- grain: one row, none without exchanges. listed: the sessions with an exchange in the period; notable: those of them
--     with an anomaly. Sessions of events alone are not counted: their events would all have to be read
-- parameters: $project (NULL: all), $since (inclusive) and $until (exclusive) of the time of the exchange, $agent (''
--     for unnamed; NULL: any), $anomalies (true: only with an anomaly, false: only without; NULL: any), $turns (fewest
--     exchanges of a session in the period; NULL: any)
WITH sessions AS (
    SELECT sum(anomalies) > 0 AS is_notable
    FROM log.session_days($project, $since::TIMESTAMP, $until::TIMESTAMP)
    WHERE log.matches_project(project, $project)
    GROUP BY connection, session_id
    HAVING ($agent IS NULL OR coalesce(max(agent), '') = $agent) AND ($turns IS NULL OR sum(exchanges) >= $turns)
)
SELECT count(*) AS listed, count(*) FILTER (is_notable) AS notable
FROM sessions
WHERE $anomalies IS NULL OR is_notable = $anomalies
HAVING count(*) > 0
