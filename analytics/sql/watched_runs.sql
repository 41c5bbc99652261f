-- purpose: the fields of runs that the watch reads: trust, safety and failure types by the end of the run (or its
--     closing if the end is unknown), with the origin of the diagnosis. Runs without evidence are excluded
-- grain: one row per run in its latest revision. Agents of a project beyond those with the most runs are one agent, named
--     other agents. If the agents have more than 4,000 runs in the window, runs of an agent that end in the same hour (six
--     hours with more than 4 agents) and share an origin are summed, and connection and session_id are empty. runs: number of runs; trust: sum;
--     unsafe: number of unsafe runs; failures: each type once per run with it
-- parameters: $projects (list), $since (inclusive) and $until (exclusive) of the end of the run; $most_agents:
--     maximum number of agents per project with rows of their own
WITH requested AS (
    SELECT unnest($projects::VARCHAR[]) AS project
), later AS (
    -- Most runs have one revision, so it is cheaper to find those with more.
    SELECT connection, session_id, max((revision, _offset)) AS version
    FROM log.diagnoses
    SEMI JOIN requested USING (project)
    WHERE revision > 0
    GROUP BY connection, session_id
), latest AS (
    SELECT
        project, coalesce(agent, '') AS agent, connection, session_id, coalesce(ended_at, closed_at) AS ended, rule_version,
        coalesce(threshold_profile, '') AS threshold_profile, coalesce(threshold_changes, '') AS threshold_changes, trust_score AS trust,
        (readiness_level = 'unsafe_for_production')::INTEGER AS unsafe, list_distinct([c.type FOR c IN failure_causes]) AS failures
    FROM log.diagnoses AS d
    SEMI JOIN requested USING (project)
    LEFT JOIN later AS l USING (connection, session_id)
    WHERE (l.version IS NULL OR (d.revision, d._offset) = l.version) AND trust_score IS NOT NULL
        AND coalesce(ended_at, closed_at) >= $since::TIMESTAMP AND coalesce(ended_at, closed_at) < $until::TIMESTAMP
), agents AS (
    SELECT
        project, agent, count(*) AS runs, row_number() OVER (PARTITION BY project ORDER BY runs DESC, agent) <= $most_agents AS is_named
    FROM latest
    GROUP BY project, agent
), sized AS (
    SELECT
        project, agent, CASE WHEN is_named THEN agent ELSE 'other agents' END AS owner,
        CASE WHEN sum(runs) OVER of_project > 4000 THEN CASE WHEN count(*) OVER of_project > 4 THEN 6 ELSE 1 END END AS hours
    FROM agents
    WINDOW of_project AS (PARTITION BY project)
), grouped AS (
    SELECT
        l.* EXCLUDE (connection, session_id, agent), s.owner AS agent, l.ended::DATE AS day, hour(l.ended) // s.hours AS block,
        CASE WHEN s.hours IS NULL THEN l.connection ELSE '' END AS connection,
        CASE WHEN s.hours IS NULL THEN l.session_id ELSE '' END AS session_id
    FROM latest AS l
    JOIN sized AS s USING (project, agent)
)
SELECT
    project, agent, day, connection, session_id, rule_version, threshold_profile, threshold_changes, max(ended) AS last_at,
    count(*) AS runs, sum(trust)::BIGINT AS trust, sum(unsafe)::BIGINT AS unsafe, list_sort(flatten(list(failures))) AS failures
FROM grouped
GROUP BY project, agent, day, block, connection, session_id, rule_version, threshold_profile, threshold_changes
ORDER BY project, agent, last_at, connection, session_id, rule_version, threshold_profile, threshold_changes
