-- purpose: traces of the same session that may belong to one turn because they share a question or a call
-- grain: one row per given trace and related trace. resumes: whether the related trace's first request continues with
--     tool outputs (NULL without a request)
-- parameters: $connections, $trace_ids, $sessions and $links (parallel lists: for each link a trace, its session, and
--     the question or call as it appears in a span's content)
WITH requested AS (
    SELECT DISTINCT
        unnest($connections::varchar []) AS connection,
        unnest($trace_ids::varchar []) AS trace_id,
        unnest($sessions::varchar []) AS session_id,
        unnest($links::varchar []) AS link
),

session_traces AS (
    SELECT DISTINCT s.connection, s.session_id, s.trace_id
    FROM log.spans AS s
    SEMI JOIN requested ON s.connection = requested.connection AND s.session_id = requested.session_id
),

linked AS (
    SELECT DISTINCT requested.connection, requested.trace_id, session_traces.trace_id AS other_id
    FROM requested
    INNER JOIN session_traces
        ON requested.connection = session_traces.connection AND requested.session_id = session_traces.session_id
            AND requested.trace_id != session_traces.trace_id
    INNER JOIN log.spans AS s
        ON session_traces.connection = s.connection AND session_traces.trace_id = s.trace_id AND contains(s.content, requested.link)
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
