-- purpose: the incidents of the fleet or of a project that match the filters, sorted and paged
-- grain: one row per incident in its latest revision, with the columns of its record. total: number of matching
--     incidents; sort_number, sort_text: sort keys, followed by the time and the id; change: key of the change that the
--     incident has in common with others, whatever their project and agent; alike: matching incidents of that change
-- parameters: $project (NULL: all), $statuses (list; NULL: any), $type (NULL: any), $confidence (suspected or
--     confirmed; NULL: any), $severity (NULL: any), $agent (of its leading series or in its evidence; NULL: any),
--     $assignee (NULL: any; '': unassigned), $text (lower case, in the title, description, project or agent, or at
--     the beginning of the id; NULL: any), $since (inclusive) and $until (exclusive) of the detection (NULL:
--     unbounded), $sort (worst, newest, oldest, since, project, state or assignee), $after_number, $after_text,
--     $after_at and $after_id (sort keys of the last incident shown; NULL: first page), $limit, $outlined (true:
--     metadata holds only the members moved and rules; NULL: all members), $now, $snoozed (then; NULL: any), $change (key;
--     NULL: any), $grouped (true: the limit counts changes, each with its first 100 incidents, in the order of its first)
WITH latest AS (
    SELECT incident_id, max((revision, _offset)) AS version
    FROM log.incidents
    WHERE $project::VARCHAR IS NULL OR project = $project::VARCHAR
    GROUP BY incident_id
), filtered AS MATERIALIZED (
    -- Evidence is most of an incident's data, so read it only for the page.
    SELECT
        i.rowid AS row, i.incident_id, revision, agent, project, detected_at, coalesce(first_day, detected_at) AS began_at,
        severity, confidence, type, tier, direction, cause, title,
        log.incident_status(status) AS state, log.incident_assignee(assignee, assigned_at, acknowledged_by) AS owner
    FROM log.incidents AS i
    JOIN latest AS l ON i.incident_id = l.incident_id AND (i.revision, i._offset) = version
    WHERE ($statuses::VARCHAR[] IS NULL OR list_contains($statuses::VARCHAR[], log.incident_status(status)))
        AND ($type::VARCHAR IS NULL OR type = $type::VARCHAR) AND ($confidence::VARCHAR IS NULL OR confidence = $confidence::VARCHAR)
        AND ($severity::VARCHAR IS NULL OR severity = $severity::VARCHAR)
        AND ($assignee::VARCHAR IS NULL
            OR coalesce(log.incident_assignee(assignee, assigned_at, acknowledged_by), '') = $assignee::VARCHAR)
        AND ($snoozed::BOOLEAN IS NULL OR (log.is_snoozed(snoozed_at, snoozed_until, woken_at, $now::TIMESTAMP)
            AND log.incident_status(status) IN ('open', 'acknowledged')) = $snoozed::BOOLEAN)
        AND ($since::TIMESTAMP IS NULL OR detected_at >= $since::TIMESTAMP)
        AND ($until::TIMESTAMP IS NULL OR detected_at < $until::TIMESTAMP)
        AND ($text::VARCHAR IS NULL OR starts_with(i.incident_id, $text::VARCHAR)
            OR contains(lower(concat_ws(chr(10), title, description, project, agent)), $text::VARCHAR))
), matching AS MATERIALIZED (
    SELECT
        filtered.*,
        -- Titles differ by owner and numbers. Changes of a series are alike if they came with the same version, or else on the same day.
        md5(concat_ws(chr(10), type, tier, direction, coalesce(cause, '') = 'judge', evidence ->> '$.moved[0].kind',
            coalesce(evidence ->> '$.moved[0].slice', nullif(regexp_extract(title, ', with ([^;]+)', 1), ''), began_at::DATE::VARCHAR))) AS change,
        CASE $sort
            WHEN 'worst' THEN log.incident_worst(state, confidence, severity, type, CASE
                WHEN state IN ('open', 'acknowledged') THEN size END)
            WHEN 'oldest' THEN 4611686018427387904 - epoch_us(detected_at)
            WHEN 'since' THEN epoch_us(began_at)
            WHEN 'state' THEN 4 - list_position(['open', 'acknowledged', 'resolved', 'dismissed'], state)
            WHEN 'assignee' THEN (owner IS NOT NULL)::BIGINT
            ELSE 0
        END AS sort_number,
        CASE $sort WHEN 'project' THEN project WHEN 'assignee' THEN coalesce(owner, '') ELSE '' END AS sort_text
    FROM filtered
    LEFT JOIN log.incident_outlines AS o ON filtered.incident_id = o.incident_id AND filtered.revision = o.version
    WHERE ($agent::VARCHAR IS NULL OR agent = $agent::VARCHAR OR list_contains(agents, $agent::VARCHAR))
        AND ($change::VARCHAR IS NULL OR change = $change::VARCHAR)
), ranked AS MATERIALIZED (
    SELECT
        *, CASE WHEN $grouped::BOOLEAN THEN change ELSE incident_id END AS family, count(*) OVER (PARTITION BY change) AS alike,
        row_number() OVER (PARTITION BY family ORDER BY sort_number DESC, sort_text, detected_at DESC, incident_id DESC) AS place
    FROM matching
), leaders AS (
    SELECT family, sort_number, sort_text, detected_at, incident_id
    FROM ranked
    WHERE place = 1 AND ($after_number::BIGINT IS NULL OR sort_number < $after_number::BIGINT OR (sort_number = $after_number::BIGINT AND (
        sort_text > $after_text::VARCHAR OR (sort_text = $after_text::VARCHAR
            AND (detected_at, incident_id) < ($after_at::TIMESTAMP, $after_id::VARCHAR)))))
    ORDER BY sort_number DESC, sort_text, detected_at DESC, incident_id DESC
    LIMIT $limit
), page AS (
    SELECT m.row, change, alike, place, l.sort_number, l.sort_text, l.detected_at AS led_at, l.incident_id AS leader
    FROM ranked AS m
    JOIN leaders AS l ON m.family = l.family AND place <= 100
)
SELECT
    i.* EXCLUDE (_topic, _partition, _offset)
    REPLACE (
        log.incident_status(status) AS status, log.incident_resolution(status, resolution) AS resolution,
        log.incident_assignee(assignee, assigned_at, acknowledged_by) AS assignee,
        CASE WHEN $outlined::BOOLEAN THEN o.evidence ELSE metadata END AS metadata
    ),
    (SELECT count(*) FROM matching) AS total, sort_number, sort_text, change, alike
FROM log.incidents AS i
JOIN page AS p ON i.rowid = p.row
LEFT JOIN log.incident_outlines AS o ON i.incident_id = o.incident_id AND i.revision = o.version
ORDER BY sort_number DESC, sort_text, led_at DESC, leader DESC, place
