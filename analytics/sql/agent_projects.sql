-- purpose: the projects of an agent, with its exchanges and runs in each
-- grain: one row per project, that of most exchanges first. Means and counts cover the period; trust: of the newest
--     run with a trust score
-- parameters: $agent, $project (NULL: all), $since (inclusive) and $until (exclusive) of exchanges and ends of runs
WITH scores AS (
    SELECT
        project, sum(exchanges)::BIGINT AS exchanges, sum(anomalies)::BIGINT AS anomalies,
        log.mean_of(sum(tier1_count), sum(tier1_sum)) AS tier1, log.mean_of(sum(tier2_count), sum(tier2_sum)) AS tier2,
        log.mean_of(sum(tier2_5_count), sum(tier2_5_sum)) AS tier2_5, log.mean_of(sum(tier3_count), sum(tier3_sum)) AS tier3
    FROM log.score_days($project, $since::TIMESTAMP, $until::TIMESTAMP)
    WHERE agent = $agent AND log.matches_project(project, $project)
    GROUP BY project
), runs AS (
    SELECT
        project, count(*) AS runs, count(*) FILTER (readiness_level = 'unsafe_for_production') AS unsafe_runs,
        arg_max(trust_score, coalesce(ended_at, closed_at)) AS trust, min(trust_score) AS lowest_trust
    FROM log.run_diagnoses($project)
    WHERE agent = $agent AND coalesce(ended_at, closed_at) >= $since::TIMESTAMP AND coalesce(ended_at, closed_at) < $until::TIMESTAMP
    GROUP BY project
)
SELECT
    project, coalesce(exchanges, 0) AS exchanges, coalesce(anomalies, 0) AS anomalies, tier1, tier2, tier2_5, tier3,
    coalesce(runs, 0) AS runs, coalesce(unsafe_runs, 0) AS unsafe_runs, trust, lowest_trust
FROM scores
FULL JOIN runs USING (project)
ORDER BY exchanges DESC, project
