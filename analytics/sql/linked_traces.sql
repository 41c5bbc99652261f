-- purpose: the traces of a session that may be parts of one turn: they have a question or a call in common
-- grain: one row per trace that is asked for and other trace; resumes: whether its first request goes on with outputs of tools (NULL where it has no request)
-- parameters: $connections, $trace_ids, $sessions and $links (for each link a trace, the session it belongs to, and the question or call as the content of a span has it)
WITH asked AS (
    SELECT DISTINCT
        unnest($connections::varchar []) AS connection,
        unnest($trace_ids::varchar []) AS trace_id,
        unnest($sessions::varchar []) AS session_id,
        unnest($links::varchar []) AS link
),

beside AS (
    SELECT DISTINCT s.connection, s.session_id, s.trace_id
    FROM log.spans AS s
    SEMI JOIN asked ON s.connection = asked.connection AND s.session_id = asked.session_id
),

linked AS (
    SELECT DISTINCT asked.connection, asked.trace_id, beside.trace_id AS other_id
    FROM asked
    INNER JOIN beside
        ON asked.connection = beside.connection AND asked.session_id = beside.session_id AND asked.trace_id != beside.trace_id
    INNER JOIN log.spans AS s
        ON beside.connection = s.connection AND beside.trace_id = s.trace_id AND contains(s.content, asked.link)
)

SELECT
    linked.connection,
    linked.trace_id,
    linked.other_id,
    min(s.started_at) AS started_at,
    arg_min(contains(s.content, '"results":['), (s.started_at, s.span_id))
        FILTER (contains(s.content, '"kind":"inference"')) AS resumes
FROM linked
INNER JOIN log.spans AS s ON linked.connection = s.connection AND linked.other_id = s.trace_id
GROUP BY linked.connection, linked.trace_id, linked.other_id
ORDER BY linked.connection, linked.trace_id, started_at, linked.other_id
