-- purpose: which exchanges were sampled and why, and what Tier 1 found among them
-- grain: one row a project, sampling reason and disposition
-- parameters: $project (NULL for all)
SELECT
    project, sampling_reason, disposition, count(*) AS exchanges, round(avg(tier1_score), 3) AS mean_tier1,
    count(*) FILTER (anomaly) AS anomalies
FROM scores
WHERE $project IS NULL OR project = $project
GROUP BY ALL
ORDER BY project, exchanges DESC, sampling_reason, disposition
