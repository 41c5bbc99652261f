-- purpose: the sessions of a project with an id, or of a run, some of whose exchanges or events are in the lake only
-- grain: one row per session. first_day, last_day: UTC days of its first and last record
-- parameters: $project, $session (id; NULL: of the run), $number (of the run; NULL: of the id)
WITH borders AS (
    SELECT border FROM log.cold_borders() WHERE project = $project
), named AS (
    SELECT connection, session_id FROM log.run_numbers WHERE project = $project AND (session_id = $session OR number = $number)
    UNION
    SELECT connection, session_id FROM log.session_scores WHERE project = $project AND session_id = $session
), scored AS (
    SELECT
        connection, session_id, min(day) AS first_day, max(day) AS last_day,
        coalesce(sum(exchanges) FILTER (day < border), 0) AS exchanges
    FROM log.session_scores
    SEMI JOIN named USING (connection, session_id)
    CROSS JOIN borders
    WHERE project = $project
    GROUP BY connection, session_id
), diagnosed AS (
    SELECT
        connection, session_id, min(coalesce(started_at, ended_at, closed_at))::DATE::TIMESTAMP AS first_day,
        max(closed_at)::DATE::TIMESTAMP AS last_day, max(event_count) AS events
    FROM log.diagnoses
    SEMI JOIN named USING (connection, session_id)
    GROUP BY connection, session_id
    HAVING first_day < (SELECT border FROM borders)
), present_scores AS (
    SELECT connection, session_id, count(DISTINCT score_id) AS exchanges
    FROM log.scores
    SEMI JOIN named USING (connection, session_id)
    WHERE project = $project AND exchange_at < (SELECT border FROM borders)
    GROUP BY connection, session_id
), present_events AS (
    SELECT connection, session_id, count(*) AS events
    FROM log.agent_events
    SEMI JOIN named USING (connection, session_id)
    WHERE project = $project
    GROUP BY connection, session_id
)
SELECT
    connection, session_id, least(s.first_day, d.first_day) AS first_day, greatest(s.last_day, d.last_day) AS last_day
FROM scored AS s
FULL JOIN diagnosed AS d USING (connection, session_id)
LEFT JOIN present_scores AS p USING (connection, session_id)
LEFT JOIN present_events AS e USING (connection, session_id)
WHERE coalesce(s.exchanges, 0) > coalesce(p.exchanges, 0) OR coalesce(d.events, 0) > coalesce(e.events, 0)
ORDER BY connection, session_id
