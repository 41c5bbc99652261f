-- purpose: the events of some turns of a session, without their payloads: those that name the turn's exchange, and those that happened since the turn began and before the next one
-- grain: one row per turn with events; part 0 is what happened before the first turn; kinds counts the events of the part by type, the most frequent first; steps are some of them, in their order, row counting them from 1
-- parameters: $project, $connection, $session, $since and $until (event times between which the session was, both inclusive), $parts (list), $from_row and $to_row (events of each part)
WITH wanted AS MATERIALIZED (
    SELECT * EXCLUDE (event_id), row_number() OVER (PARTITION BY part ORDER BY occurred_at, place) AS row
    FROM log.session_parts($project, $connection, $session, $since::TIMESTAMP, $until::TIMESTAMP)
    WHERE list_contains($parts::BIGINT[], part)
), kinds AS (
    SELECT part, event, count(*) AS count FROM wanted GROUP BY part, event
), counted AS (
    SELECT part, sum(count)::BIGINT AS events, list({'event': event, 'count': count} ORDER BY count DESC, event) AS kinds
    FROM kinds
    GROUP BY part
), shown AS (
    SELECT
        part,
        list({'row': row, 'place': place, 'event': event, 'tool': tool, 'status': status, 'occurred_at': occurred_at} ORDER BY row) AS steps
    FROM wanted
    WHERE row BETWEEN $from_row AND $to_row
    GROUP BY part
)
SELECT c.part, c.events, c.kinds, coalesce(s.steps, []) AS steps
FROM counted AS c
LEFT JOIN shown AS s USING (part)
ORDER BY c.part
