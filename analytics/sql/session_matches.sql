-- purpose: the turns of a session whose question, answer or thinking contains a text, in any case
-- grain: one row per turn, in order, $limit at most. place: number of the turn in the session, from 1; matches: number
--     of all matching turns
-- parameters: $project, $connection, $session, $since and $until (first and last event time of the session, both
--     inclusive), $text, $limit
WITH turns AS (
    SELECT place, exchange_id, said_at
    FROM log.session_turns($project, $connection, $session, $since::TIMESTAMP, $until::TIMESTAMP)
)
SELECT t.place, count(*) OVER () AS matches
FROM turns AS t
JOIN log.current_exchanges AS e
    ON e.occurred_at = t.said_at AND e.exchange_id = t.exchange_id AND e.session_id = $session AND e.connection = $connection
    AND e.project = $project
WHERE contains(lower(concat_ws(chr(10), e.user_message, e.agent_response, e.agent_thinking)), lower($text))
ORDER BY t.place
LIMIT $limit
