-- purpose: the exchanges that two scorings share, and how many of them each scoring judged, flagged as anomalous or
--     left to a simulated judge, with the cost
-- grain: one row per project. judged, anomalies, simulated, cost_usd (known costs) and unknown_costs of each side
--     cover the shared exchanges; other_evidence: shared exchanges whose text differs
-- parameters: $a, $b (SQL statements that return rows of `log.scores`, one per side; NULL: this database), $project
--     (NULL: all)
WITH latest_a AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM query(coalesce($a, 'FROM log.scores')) WHERE $project IS NULL OR project = $project GROUP BY score_id
), latest_b AS (
    SELECT score_id, max((revision, _offset)) AS version
    FROM query(coalesce($b, 'FROM log.scores')) WHERE $project IS NULL OR project = $project GROUP BY score_id
), side_a AS (
    SELECT score_id, project, disposition, anomaly, simulated, cost_usd, evidence_digest
    FROM query(coalesce($a, 'FROM log.scores')) AS s
    SEMI JOIN latest_a AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
), side_b AS (
    SELECT score_id, project, disposition, anomaly, simulated, cost_usd, evidence_digest
    FROM query(coalesce($b, 'FROM log.scores')) AS s
    SEMI JOIN latest_b AS l ON s.score_id = l.score_id AND (s.revision, s._offset) = l.version
)
SELECT
    coalesce(a.project, b.project) AS project, count(*) FILTER (a.score_id = b.score_id) AS in_both,
    count(*) FILTER (b.score_id IS NULL) AS only_a, count(*) FILTER (a.score_id IS NULL) AS only_b,
    count(*) FILTER (a.evidence_digest <> b.evidence_digest) AS other_evidence,
    count(*) FILTER (a.disposition = 'scored' AND b.score_id IS NOT NULL) AS judged_a,
    count(*) FILTER (b.disposition = 'scored' AND a.score_id IS NOT NULL) AS judged_b,
    count(*) FILTER (a.anomaly AND b.score_id IS NOT NULL) AS anomalies_a,
    count(*) FILTER (b.anomaly AND a.score_id IS NOT NULL) AS anomalies_b,
    count(*) FILTER (a.simulated AND b.score_id IS NOT NULL) AS simulated_a,
    count(*) FILTER (b.simulated AND a.score_id IS NOT NULL) AS simulated_b,
    round(coalesce(sum(a.cost_usd) FILTER (b.score_id IS NOT NULL), 0), 9) AS cost_usd_a,
    round(coalesce(sum(b.cost_usd) FILTER (a.score_id IS NOT NULL), 0), 9) AS cost_usd_b,
    count(*) FILTER (a.score_id = b.score_id AND a.cost_usd IS NULL) AS unknown_costs_a,
    count(*) FILTER (a.score_id = b.score_id AND b.cost_usd IS NULL) AS unknown_costs_b
FROM side_a AS a FULL JOIN side_b AS b ON a.score_id = b.score_id
GROUP BY 1
ORDER BY project
