-- purpose: spans from which no exchange or event was made, by reason, with the newest of each as an example
-- grain: one row per project, connection, state and instrumentation scope, the states that a user can act on first
-- parameters: $project (NULL: all), $connection (NULL: all), $since (inclusive, by the assembly of the trace; NULL:
--     all)
WITH revised AS (
    -- Few traces are revised; finding the newest revision of every trace would take ten times as long.
    SELECT connection, trace_id, max(revision) AS revision
    FROM log.trace_assemblies
    WHERE revision > 0
    GROUP BY connection, trace_id
), newest AS (
    SELECT t.project, connection, trace_id, t.assembled_at, unnest(t.unused_spans, recursive := true)
    FROM log.trace_assemblies AS t
    LEFT JOIN revised AS r USING (connection, trace_id)
    WHERE
        t.revision = coalesce(r.revision, 0)
        AND ($project IS NULL OR t.project = $project)
        AND ($connection IS NULL OR connection = $connection)
        AND ($since IS NULL OR t.assembled_at >= $since)
)

SELECT
    project,
    connection,
    state,
    scope,
    sum(spans)::bigint AS spans,
    count(*) AS traces,
    arg_max(example, (assembled_at, trace_id)) AS example,
    arg_max(trace_id, (assembled_at, trace_id)) AS trace_id,
    max(assembled_at) AS last_at
FROM newest
GROUP BY project, connection, state, scope
ORDER BY
    array_position(
        ['unknown_kind', 'no_content', 'helper', 'evaluation', 'repeated', 'retrieval', 'not_a_model_call'], state
    ),
    spans DESC,
    project,
    connection,
    scope
