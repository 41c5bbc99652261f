-- purpose: the events of the given turns of a session, without payloads: those that name the turn's exchange, and
--     those between the start of the turn and the next
-- grain: one row per turn with events. part: number of the turn, 0 for events before the first; kinds: number of
--     events per type, the most frequent first; steps: the requested events in order, each with its row number from 1;
--     acted_until: time of the last call, output, error or token count; NULL without one
-- parameters: $project, $connection, $session, $since and $until (first and last event time of the session, both
--     inclusive), $parts (list of turns), $from_row and $to_row (range of events per turn)
WITH numbered AS MATERIALIZED (
    SELECT * EXCLUDE (event_id), row_number() OVER (PARTITION BY part ORDER BY occurred_at, place) AS row
    FROM log.session_parts($project, $connection, $session, $since::TIMESTAMP, $until::TIMESTAMP)
    WHERE list_contains($parts::BIGINT[], part)
), kinds AS (
    SELECT part, event, count(*) AS count, max(occurred_at) AS last_at FROM numbered GROUP BY part, event
), counted AS (
    SELECT
        part, sum(count)::BIGINT AS events, list({'event': event, 'count': count} ORDER BY count DESC, event) AS kinds,
        -- The end of a session, a heartbeat or a change of state may be long after the turn.
        max(last_at) FILTER (event IN ('tool_call', 'tool_output', 'token_usage', 'error_event', 'retry_event')) AS acted_until
    FROM kinds
    GROUP BY part
), step_lists AS (
    SELECT
        part,
        list({'row': row, 'place': place, 'event': event, 'tool': tool, 'status': status, 'occurred_at': occurred_at} ORDER BY row) AS steps
    FROM numbered
    WHERE row BETWEEN $from_row AND $to_row
    GROUP BY part
)
SELECT c.part, c.events, c.kinds, c.acted_until, coalesce(s.steps, []) AS steps
FROM counted AS c
LEFT JOIN step_lists AS s USING (part)
ORDER BY c.part
