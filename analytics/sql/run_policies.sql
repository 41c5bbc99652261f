-- purpose: the policies under which an agent's runs were diagnosed, hour by hour, because a policy change can look
--     like a change of the agent
-- grain: one row per hour and policy with runs of the agent that have evidence. runs: their number
-- parameters: $project, $agent ('' for runs without an agent), $since (inclusive) and $until (exclusive) of the end
--     of the run
WITH latest AS (
    SELECT connection, session_id, max((revision, _offset)) AS version
    FROM log.diagnoses
    WHERE project = $project
    GROUP BY connection, session_id
)
SELECT date_trunc('hour', coalesce(ended_at, closed_at)) AS hour, policy_digest, count(*) AS runs
FROM log.diagnoses AS d
JOIN latest AS l ON d.connection = l.connection AND d.session_id = l.session_id AND (d.revision, d._offset) = l.version
WHERE project = $project AND coalesce(agent, '') = $agent AND trust_score IS NOT NULL
    AND coalesce(ended_at, closed_at) >= $since::TIMESTAMP AND coalesce(ended_at, closed_at) < $until::TIMESTAMP
GROUP BY ALL
ORDER BY hour, policy_digest
