-- purpose: the values by which the incidents of the fleet or of a project can be filtered: projects, agents and
--     assignees
-- grain: one row per kind (project, agent or assignee) and value, in this order. live: open or acknowledged incidents
-- parameters: $project (NULL: all)
WITH latest AS (
    SELECT incident_id, max((revision, _offset)) AS version
    FROM log.incidents
    WHERE $project::VARCHAR IS NULL OR project = $project::VARCHAR
    GROUP BY incident_id
), current_incidents AS (
    SELECT
        project, agent, log.incident_assignee(assignee, assigned_at, acknowledged_by) AS assignee,
        status IN ('open', 'acknowledged') AS is_live
    FROM log.incidents AS i
    JOIN latest AS l ON i.incident_id = l.incident_id AND (i.revision, i._offset) = version
)
SELECT kind, value, count(*) FILTER (is_live) AS live
FROM (UNPIVOT current_incidents ON project, agent, assignee INTO NAME kind VALUE value)
GROUP BY ALL
ORDER BY kind, value
