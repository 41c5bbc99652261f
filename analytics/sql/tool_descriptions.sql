-- purpose: the descriptions of tools that agents were sent, and the one before each: a tool whose description changed after it was
--     approved may carry instructions of somebody else
-- grain: one row per project, agent ('' for none), tool and description that was seen in the period, in the order in which they came. sessions:
--     each counts once per UTC day; connection and session_id: the first session with it; previous: the description that came
--     before it, NULL for the first of the period; `description` is a digest
-- parameters: $projects (list), $since (inclusive, rounded down to a day) and $until (exclusive) by the first event of a day,
--     $changed_since (only descriptions that replaced another one from then on; NULL: all)
SELECT
    project, agent, tool, description, sum(sessions)::BIGINT AS sessions, min(first_at) AS first_at, max(last_at) AS last_at,
    unnest(arg_min({'connection': "connection", 'session_id': session_id}, first_at)),
    lag(description) OVER tools AS previous, lag(sum(sessions)::BIGINT) OVER tools AS previous_sessions
FROM log.tool_descriptions
WHERE list_contains($projects::VARCHAR[], project) AND day >= date_trunc('day', $since::TIMESTAMP) AND first_at < $until::TIMESTAMP
GROUP BY project, agent, tool, description
WINDOW tools AS (PARTITION BY project, agent, tool ORDER BY min(first_at), description)
QUALIFY $changed_since::TIMESTAMP IS NULL OR (previous IS NOT NULL AND min(first_at) >= $changed_since::TIMESTAMP)
ORDER BY project, agent, tool, first_at, description
