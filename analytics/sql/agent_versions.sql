-- purpose: the versions of a project's agents in a period, with their scores summed by session and their runs, to
--     compare one version with another
-- grain: one row per agent ('' if unnamed), label and version, the newest version first. version: NULL before the
--     first deployment of an agent whose exchanges lack the label; began_at: the earlier of its deployment and its
--     first exchange in the period; sessions: those with a score of the tier; judged: their scores; simulated:
--     exchanges scored by a simulated judge; w: a session's weight (1 / sampling_probability); t: weight times score;
--     ww, wt, tt: sums of squares and products. Sums are in integer millionths, so they do not depend on the order of
--     rows. runs: sessions with evidence, each counted under the version of most of its exchanges, or the later one
--     if equal
-- parameters: $project, $one_in (read one of this many sessions, chosen by a hash of the id; 1: all), $agent ('' for
--     unnamed; NULL: any), $labels (names of the labels that hold versions), $tier (tier1, tier2, tier2_5 or tier3),
--     $since (inclusive), $until (exclusive)
WITH current AS (
    -- Sorting these few rows is cheaper than finding the rescored ones first.
    SELECT *
    FROM log.scores
    WHERE project = $project AND exchange_at >= $since::TIMESTAMP AND exchange_at < $until::TIMESTAMP
        AND ($one_in = 1 OR hash(session_id) % $one_in::UBIGINT = 0)
    QUALIFY row_number() OVER (PARTITION BY score_id ORDER BY revision DESC, _offset DESC) = 1
), scored AS (
    SELECT
        connection, session_id, exchange_id, exchange_at, coalesce(agent, '') AS agent, anomaly,
        round(log.weight_of($tier, sampling_probability) * 1e6)::BIGINT AS weight, simulated,
        log.score_of($tier, anomaly, tier1_score, tier2_state, tier2_score, tier2_5_state, tier2_5_alignment, tier3_state,
            tier3_score) AS score
    FROM current
    WHERE $agent::VARCHAR IS NULL OR coalesce(agent, '') = $agent::VARCHAR
), named AS (
    -- Checking for labels first would read them for all sessions; unnest drops empty lists anyway.
    SELECT DISTINCT connection, exchange_id, pair.name AS label, pair.value AS version
    FROM (
        SELECT connection, exchange_id, unnest(labels) AS pair
        FROM log.current_exchanges
        WHERE project = $project AND occurred_at >= $since::TIMESTAMP AND occurred_at < $until::TIMESTAMP
            AND ($one_in = 1 OR hash(session_id) % $one_in::UBIGINT = 0)
    )
    WHERE list_contains($labels::VARCHAR[], pair.name)
), labelled AS (
    SELECT s.*, n.label, n.version
    FROM scored AS s
    JOIN named AS n USING (connection, exchange_id)
), released AS (
    SELECT a.agent, d.label, max(d.version) AS version, d.occurred_at AS deployed_at
    FROM (SELECT DISTINCT agent FROM scored) AS a
    JOIN deployments AS d ON d.project = $project AND (d.agent IS NULL OR d.agent = a.agent)
    WHERE list_contains($labels::VARCHAR[], d.label) AND d.occurred_at < $until::TIMESTAMP
    GROUP BY a.agent, d.label, d.occurred_at
), unlabelled AS (
    SELECT s.*, r.label
    FROM scored AS s
    JOIN (SELECT DISTINCT agent, label FROM released ANTI JOIN labelled USING (agent, label)) AS r USING (agent)
), versioned AS (
    SELECT * FROM labelled
    UNION ALL BY NAME
    SELECT u.*, r.version
    FROM unlabelled AS u
    ASOF LEFT JOIN released AS r ON u.agent = r.agent AND u.label = r.label AND u.exchange_at >= r.deployed_at
), sessions AS (
    SELECT
        agent, label, version, connection, session_id, min(exchange_at) AS first_at, max(exchange_at) AS last_at, count(*) AS exchanges,
        count(score) AS judged, count(*) FILTER (anomaly) AS anomalies,
        count(*) FILTER (simulated) AS simulated, coalesce(sum(weight) FILTER (score IS NOT NULL), 0)::BIGINT AS w,
        coalesce(sum(round(weight * score)::BIGINT), 0)::BIGINT AS t,
        row_number() OVER (PARTITION BY agent, label, connection, session_id ORDER BY count(*) DESC, max(exchange_at) DESC,
            version) = 1 AS is_main
    FROM versioned
    GROUP BY agent, label, version, connection, session_id
), verdicts AS (
    SELECT
        connection, session_id, arg_max_null(trust_score, (revision, _offset)) IS NOT NULL AS is_run,
        arg_max(readiness_level, (revision, _offset)) = 'unsafe_for_production' AS is_unsafe
    FROM log.diagnoses
    SEMI JOIN sessions USING (connection, session_id)
    GROUP BY connection, session_id
)
SELECT
    s.agent, s.label, s.version, least(min(first_at), any_value(deployed_at)) AS began_at, max(last_at) AS last_at,
    count(*) FILTER (judged > 0) AS sessions, sum(exchanges)::BIGINT AS exchanges, sum(judged)::BIGINT AS judged,
    sum(anomalies)::BIGINT AS anomalies, sum(simulated)::BIGINT AS simulated,
    sum(w)::BIGINT / 1e6 AS w, sum(t)::BIGINT / 1e6 AS t, sum(w::HUGEINT * w) / 1e12 AS ww,
    sum(w::HUGEINT * t) / 1e12 AS wt, sum(t::HUGEINT * t) / 1e12 AS tt, count(*) FILTER (is_run AND is_main) AS runs,
    count(*) FILTER (is_run AND is_main AND is_unsafe) AS unsafe_runs
FROM sessions AS s
LEFT JOIN verdicts AS v USING (connection, session_id)
LEFT JOIN (SELECT agent, label, version, min(deployed_at) AS deployed_at FROM released GROUP BY ALL) AS r
    ON r.agent = s.agent AND r.label = s.label AND r.version = s.version
GROUP BY s.agent, s.label, s.version
ORDER BY s.agent, s.label, began_at DESC, s.version
