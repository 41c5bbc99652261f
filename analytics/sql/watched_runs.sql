-- purpose: what the watch reads of runs: trust, whether it is unsafe and the types of its failures, by the end of the run (when it was closed if that is unknown), with what made the diagnosis; runs without evidence are left out
-- grain: one row per run in its latest revision, of the agents of a project with the most runs; where these have more than 4 000 runs in the window, the runs of an agent that end within one hour (more than 4 agents: six hours) and were diagnosed alike are added up, on every day of the window, and connection and session_id are empty; runs: how many; trust: the sum; unsafe: how many are; failures: each type once for each run that has it
-- parameters: $projects (list), $since (inclusive) and $until (exclusive), when runs ended; $most_agents: of a project, so many agents
WITH wanted AS (
    SELECT unnest($projects::VARCHAR[]) AS project
), later AS (
    -- Most runs have one revision, so it is cheaper to look for runs with more.
    SELECT connection, session_id, max((revision, _offset)) AS version
    FROM log.diagnoses
    SEMI JOIN wanted USING (project)
    WHERE revision > 0
    GROUP BY connection, session_id
), latest AS (
    SELECT
        project, coalesce(agent, '') AS agent, connection, session_id, coalesce(ended_at, closed_at) AS ended, rule_version,
        coalesce(threshold_profile, '') AS threshold_profile, coalesce(threshold_changes, '') AS threshold_changes, trust_score AS trust,
        (readiness_level = 'unsafe_for_production')::INTEGER AS unsafe, list_distinct([c.type FOR c IN failure_causes]) AS failures
    FROM log.diagnoses AS d
    SEMI JOIN wanted USING (project)
    LEFT JOIN later AS l USING (connection, session_id)
    WHERE (l.version IS NULL OR (d.revision, d._offset) = l.version) AND trust_score IS NOT NULL
        AND coalesce(ended_at, closed_at) >= $since::TIMESTAMP AND coalesce(ended_at, closed_at) < $until::TIMESTAMP
), agents AS (
    SELECT project, agent, count(*) AS runs
    FROM latest
    GROUP BY project, agent
    QUALIFY row_number() OVER (PARTITION BY project ORDER BY runs DESC, agent) <= $most_agents
), sized AS (
    SELECT project, agent, CASE WHEN sum(runs) OVER of_project > 4000 THEN CASE WHEN count(*) OVER of_project > 4 THEN 6 ELSE 1 END END AS hours
    FROM agents
    WINDOW of_project AS (PARTITION BY project)
), placed AS (
    SELECT
        l.* EXCLUDE (connection, session_id), l.ended::DATE AS day, hour(l.ended) // s.hours AS block,
        CASE WHEN s.hours IS NULL THEN l.connection ELSE '' END AS connection,
        CASE WHEN s.hours IS NULL THEN l.session_id ELSE '' END AS session_id
    FROM latest AS l
    JOIN sized AS s USING (project, agent)
)
SELECT
    project, agent, day, connection, session_id, rule_version, threshold_profile, threshold_changes, max(ended) AS last_at,
    count(*) AS runs, sum(trust)::BIGINT AS trust, sum(unsafe)::BIGINT AS unsafe, list_sort(flatten(list(failures))) AS failures
FROM placed
GROUP BY project, agent, day, block, connection, session_id, rule_version, threshold_profile, threshold_changes
ORDER BY project, agent, last_at, connection, session_id, rule_version, threshold_profile, threshold_changes
