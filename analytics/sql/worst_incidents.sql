-- purpose: the worst confirmed incident of each project that is open or acknowledged, in the order of the inbox
-- grain: one row per project with an open or acknowledged confirmed incident, the worst first. since: its first day;
--     name, level_before, level_after: of its leading series, NULL if its evidence has none
-- parameters: $project (NULL: all)
WITH latest AS (
    SELECT incident_id, max((revision, _offset)) AS version
    FROM log.incidents
    WHERE $project IS NULL OR project = $project
    GROUP BY incident_id
), live AS (
    SELECT i.*
    FROM log.incidents AS i
    JOIN latest AS l ON i.incident_id = l.incident_id AND (i.revision, i._offset) = version
    WHERE log.incident_status(status) IN ('open', 'acknowledged') AND confidence = 'confirmed'
)
SELECT
    project, i.incident_id, severity, log.incident_status(status) AS status, acknowledged_by, type, tier, agent, direction,
    first_day::DATE AS since, evidence ->> '$.moved[0].name' AS name,
    TRY_CAST(evidence -> '$.moved[0].from' AS DOUBLE) AS level_before, TRY_CAST(evidence -> '$.moved[0].to' AS DOUBLE) AS level_after
FROM live AS i
LEFT JOIN log.incident_outlines AS o ON i.incident_id = o.incident_id AND i.revision = o.version
QUALIFY row_number() OVER (PARTITION BY project ORDER BY
    log.incident_worst(log.incident_status(status), confidence, severity, type, size) DESC, detected_at DESC, i.incident_id DESC) = 1
ORDER BY log.incident_worst(log.incident_status(status), confidence, severity, type, size) DESC, detected_at DESC, i.incident_id DESC
