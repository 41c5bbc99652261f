-- purpose: the turns of a session at a glance: which have an anomaly
-- grain: one row per turn, in order, $limit at most. place: number of the turn in the session, from 1
-- parameters: $project, $connection, $session, $since and $until (first and last event time of the session, both
--     inclusive), $limit
SELECT place, turn_number, coalesce(anomaly, false) AS anomaly
FROM log.session_turns($project, $connection, $session, $since::TIMESTAMP, $until::TIMESTAMP)
ORDER BY place
LIMIT $limit
