-- purpose: what decides, over the whole installation, which changes are confirmed: how many series the newest check of each
--     project compared, and the evidence of its live incidents
-- grain: one row per project with a check before $as_of. series: number of series; log_evidence: natural logarithms, of each
--     live incident of drift the largest
-- parameters: $as_of (exclusive, of the checks and detections)
WITH latest AS (
    SELECT incident_id, max((revision, _offset)) AS version
    FROM log.incidents
    WHERE type = 'drift' AND detected_at < $as_of::TIMESTAMP
    GROUP BY incident_id
), live AS (
    SELECT
        project, list_max([
            observation.logEvidence
            FOR observation IN map_values(from_json(coalesce(metadata -> '$.rules', '{}'), '"MAP(VARCHAR, STRUCT(logEvidence DOUBLE))"'))
        ]) AS log_evidence
    FROM log.incidents AS i
    JOIN latest AS l ON i.incident_id = l.incident_id AND (i.revision, i._offset) = version
    WHERE log.incident_status(status) IN ('open', 'acknowledged')
), evidence AS (
    SELECT project, list(log_evidence ORDER BY log_evidence DESC) AS log_evidence
    FROM live
    WHERE log_evidence IS NOT NULL
    GROUP BY project
)
SELECT project, series::BIGINT AS series, coalesce(log_evidence, []) AS log_evidence
FROM log.project_checks
LEFT JOIN evidence USING (project)
WHERE checked_at < $as_of::TIMESTAMP
ORDER BY project
