-- purpose: the anchors of a project, withdrawn ones last
-- grain: one row per anchor, with the columns of its record
-- parameters: $project
SELECT *
FROM anchors
WHERE project = $project
ORDER BY active DESC, ingested_at DESC, anchor_id
