-- purpose: the number of exchanges that a list without other filters has on all its pages
-- grain: one row, none without exchanges. listed: the exchanges of the period; notable: those of them with an anomaly
-- parameters: $project (NULL: all), $since (inclusive) and $until (exclusive) of the time of the exchange, $agent (''
--     for unnamed; NULL: any), $anomalies (true: only with an anomaly, false: only without; NULL: any)
SELECT
    coalesce(sum(CASE WHEN $anomalies IS NULL THEN exchanges WHEN $anomalies THEN anomalies ELSE exchanges - anomalies END), 0)::BIGINT AS listed,
    CASE WHEN $anomalies IS NULL OR $anomalies THEN coalesce(sum(anomalies), 0) ELSE 0 END::BIGINT AS notable
FROM log.score_days($project, $since::TIMESTAMP, $until::TIMESTAMP)
WHERE log.matches_project(project, $project) AND ($agent IS NULL OR coalesce(agent, '') = $agent)
HAVING count(*) > 0
