-- purpose: which exchanges two scorings have in common, and what each says of these: judged, anomalous, by a simulated judge, at what cost
-- grain: one row per project; judged, anomalies, simulated, cost_usd (of known costs) and unknown_costs of each side are of the exchanges that both have; other_evidence counts those whose text was not the same
-- parameters: $a, $b (statements that read the rows of `log.scores` of each side; NULL: those of this database), $project (NULL for all)
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
