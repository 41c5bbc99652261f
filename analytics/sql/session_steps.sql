-- purpose: the events of some turns of a session, without their payloads: those that name the turn's exchange, and those that happened since the turn began and before the next one
-- grain: one row a turn with events; part 0 is what happened before the first turn; kinds counts the events of the part by type, the most frequent first; steps are some of them, in their order, row counting them from 1
-- parameters: $project, $connection, $session, $since and $until (event times between which the session was, both inclusive), $parts (list), $from_row and $to_row (events of each part)
WITH turns AS (
    SELECT exchange_id, said_at, place, coalesce(lead(said_at) OVER (ORDER BY place), TIMESTAMP 'infinity') AS next_at
    FROM log.session_turns($project, $connection, $session, $since::TIMESTAMP, $until::TIMESTAMP)
), spans AS (
    -- From the beginning of each turn to that of the next one; what was before the first turn has the place 0.
    SELECT place, said_at, next_at FROM turns WHERE list_contains($parts::BIGINT[], place)
    UNION ALL
    SELECT 0, TIMESTAMP '-infinity', coalesce(min(said_at), TIMESTAMP 'infinity') FROM turns HAVING list_contains($parts::BIGINT[], 0)
), events AS (
    SELECT event, occurred_at, exchange_id, _offset
    FROM log.agent_events
    WHERE session_id = $session AND connection = $connection AND project = $project
        AND occurred_at >= $since::TIMESTAMP AND occurred_at <= $until::TIMESTAMP
), wanted AS (
    -- There are few spans and perhaps many events: IS TRUE has DuckDB compare each with each, which sorts nothing.
    SELECT e.event, e.occurred_at, e._offset, coalesce(n.place, t.place) AS part
    FROM events AS e
    LEFT JOIN turns AS n USING (exchange_id)
    LEFT JOIN spans AS t ON (n.place IS NULL AND e.occurred_at >= t.said_at AND e.occurred_at < t.next_at) IS TRUE
    WHERE list_contains($parts::BIGINT[], coalesce(n.place, t.place))
), kinds AS (
    SELECT part, event, count(*) AS count FROM wanted GROUP BY part, event
), counted AS (
    SELECT part, sum(count)::BIGINT AS events, list({'event': event, 'count': count} ORDER BY count DESC, event) AS kinds
    FROM kinds
    GROUP BY part
), numbered AS (
    SELECT part, _offset, row_number() OVER (PARTITION BY part ORDER BY occurred_at, _offset) AS row FROM wanted
), shown AS (
    SELECT
        n.part,
        list({'row': n.row, 'place': e._offset, 'event': e.event, 'tool': e.tool, 'status': e.status, 'occurred_at': e.occurred_at}
            ORDER BY n.row) AS steps
    FROM numbered AS n
    JOIN log.agent_events AS e ON n._offset = e._offset AND n.row BETWEEN $from_row AND $to_row
    WHERE session_id = $session AND connection = $connection AND project = $project
        AND occurred_at >= $since::TIMESTAMP AND occurred_at <= $until::TIMESTAMP
    GROUP BY n.part
)
SELECT c.part, c.events, c.kinds, coalesce(s.steps, []) AS steps
FROM counted AS c
LEFT JOIN shown AS s USING (part)
ORDER BY c.part
