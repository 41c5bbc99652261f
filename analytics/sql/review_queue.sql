-- purpose: the exchange of a project that is most worth a look of this rater: unseen ones first, of these anomalies, then those the judge has not scored or was unsure of, then the newest; every fourth pick on average is drawn instead from all that Tier 3 judged, in an order that has nothing to do with them and is the same for every rater
-- grain: one row at most; pick: random or priority; stratum: anomaly, unscored, unsure or routine; seen_by: people who have scored it
-- parameters: $project, $rater, $skip (list of ids of scores to pass over)
WITH labels AS (
    SELECT subject_id AS score_id, count(DISTINCT reviewer) AS seen_by, bool_or(reviewer = $rater) AS is_done
    FROM log.reviews
    WHERE kind = 'human_score' AND score IS NOT NULL AND project = $project
    GROUP BY subject_id
), turn AS (
    SELECT
        md5(concat_ws(chr(10), $project, $rater, len($skip::VARCHAR[]) + count(*) FILTER (is_done)))[1] < '4' AS is_random
    FROM labels
), later AS (
    -- Most scores have one version, so it is cheaper to look for those that have more.
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    WHERE project = $project AND revision > 0
    GROUP BY score_id
), candidates AS (
    SELECT
        s.score_id, s.connection, s.exchange_id, s.exchange_at, s.tier3_state = 'scored' AS is_judged,
        coalesce(r.seen_by, 0) AS seen_by,
        CASE
            WHEN s.anomaly THEN 'anomaly'
            WHEN s.disposition <> 'scored' THEN 'unscored'
            WHEN s.tier3_score BETWEEN 2.5 AND 3.5 OR s.tier2_score BETWEEN 0.4 AND 0.6 OR s.tier2_5_alignment BETWEEN 0.4 AND 0.6
                OR abs(s.tier2_score - (s.tier3_score - 1) / 4) >= 0.4 OR (s.tier2_flagged AND s.tier3_score >= 4)
                THEN 'unsure'
            ELSE 'routine'
        END AS stratum
    FROM log.scores AS s
    LEFT JOIN later AS l ON s.score_id = l.score_id
    LEFT JOIN labels AS r ON s.score_id = r.score_id
    WHERE s.project = $project AND s.disposition <> 'sampling_skip' AND (l.version IS NULL OR (s.revision, s._offset) = l.version)
        AND NOT coalesce(r.is_done, false) AND NOT list_contains($skip::VARCHAR[], s.score_id)
)
SELECT
    c.score_id, c.connection, c.exchange_id, c.stratum, c.seen_by,
    CASE WHEN t.is_random AND c.is_judged THEN 'random' ELSE 'priority' END AS pick
FROM candidates AS c, turn AS t
ORDER BY
    pick DESC, CASE WHEN pick = 'random' THEN md5(c.score_id) END, c.seen_by > 0,
    list_position(['anomaly', 'unscored', 'unsure', 'routine'], c.stratum), c.exchange_at DESC, c.score_id
LIMIT 1
