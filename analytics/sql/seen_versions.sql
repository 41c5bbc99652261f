-- purpose: the versions of a project's agents that exchanges and deployments name
-- grain: one row per agent, label and version
-- parameters: $project, $labels (names of the labels that hold versions)
SELECT DISTINCT
    named_versions.agent,
    named_versions.label,
    named_versions.version
FROM (
    SELECT
        e.agent,
        item.label.name AS label,
        item.label.value AS version
    FROM log.exchanges AS e, unnest(e.labels) AS item (label)
    WHERE e.project = $project
    UNION ALL
    SELECT agent, label, version
    FROM log.deployments
    WHERE project = $project
) AS named_versions
WHERE list_contains($labels::varchar [], named_versions.label)
ORDER BY ALL
