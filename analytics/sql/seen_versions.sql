-- purpose: the versions of a project's agents that its exchanges and deployments have named
-- grain: one row per agent, label and version
-- parameters: $project, $labels (names of the labels that are versions)
SELECT DISTINCT
    seen.agent,
    seen.label,
    seen.version
FROM (
    SELECT
        e.agent,
        given.label.name AS label,
        given.label.value AS version
    FROM log.exchanges AS e, unnest(e.labels) AS given (label)
    WHERE e.project = $project
    UNION ALL
    SELECT agent, label, version
    FROM log.deployments
    WHERE project = $project
) AS seen
WHERE list_contains($labels::varchar [], seen.label)
ORDER BY ALL
