-- purpose: the exchange of a project that is most worth a look of this rater: unseen ones first, of these anomalies, then those the judge has not scored or, among the newest, was unsure of, then the newest; every fourth pick on average is drawn instead from all that Tier 3 judged, in the order of the ids, which has nothing to do with them and is the same for every rater
-- grain: one row at most; pick: random or priority; stratum: anomaly, unscored, unsure or routine; seen_by: people who have scored it; the newest: the days with the newest 20 000 exchanges that were not left out, and as many more as people have scored and are passed over
-- parameters: $project, $rater, $skip (list of ids of scores to pass over)
WITH labels AS (
    SELECT subject_id AS score_id, count(DISTINCT reviewer) AS seen_by, bool_or(reviewer = $rater) AS is_done
    FROM log.reviews
    WHERE kind = 'human_score' AND score IS NOT NULL AND project = $project
    GROUP BY subject_id
), passed AS (
    SELECT score_id FROM labels WHERE is_done
    UNION
    SELECT unnest($skip::VARCHAR[])
), turn AS (
    SELECT
        md5(concat_ws(chr(10), $project, $rater, len($skip::VARCHAR[]) + count(*) FILTER (is_done)))[1] < '4' AS is_random,
        20000 + len($skip::VARCHAR[]) + count(*) AS wanted
    FROM labels
), days AS (
    SELECT day, sum(sum(exchanges)) OVER (ORDER BY day DESC) AS found_since
    FROM log.score_days($project, TIMESTAMP '1970-01-01', TIMESTAMP '9999-12-31')
    WHERE disposition <> 'sampling_skip'
    GROUP BY day
), bound AS (
    SELECT coalesce(max(day), TIMESTAMP '1970-01-01') AS earliest FROM days, turn WHERE found_since >= wanted
), drawn AS (
    SELECT score_id, exchange_at, revision, _offset, 0 AS place
    FROM log.scores
    SEMI JOIN (SELECT $project AS project FROM turn WHERE is_random) USING (project)
    ANTI JOIN passed USING (score_id)
    WHERE project = $project AND disposition <> 'sampling_skip' AND tier3_state = 'scored'
    ORDER BY score_id
    LIMIT 100
), worth AS (
    SELECT score_id, exchange_at, revision, _offset, CASE WHEN anomaly THEN 1 ELSE 2 END AS place
    FROM log.scores
    WHERE project = $project AND (anomaly OR disposition <> 'scored') AND disposition <> 'sampling_skip'
    UNION ALL
    SELECT
        score_id, exchange_at, revision, _offset,
        CASE
            WHEN tier3_score BETWEEN 2.5 AND 3.5 OR tier2_score BETWEEN 0.4 AND 0.6 OR tier2_5_alignment BETWEEN 0.4 AND 0.6
                OR abs(tier2_score - (tier3_score - 1) / 4) >= 0.4 OR (tier2_flagged AND tier3_score >= 4)
                THEN 3
            ELSE 4
        END AS place
    FROM log.scores
    WHERE project = $project AND exchange_at >= (SELECT earliest FROM bound) AND NOT anomaly AND disposition = 'scored'
    UNION ALL
    FROM drawn
), later AS (
    -- Most scores have one version, so it is cheaper to look for those that have more.
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    SEMI JOIN worth USING (score_id)
    WHERE project = $project AND revision > 0
    GROUP BY score_id
), picked AS (
    SELECT w.*, coalesce(r.seen_by, 0) AS seen_by
    FROM worth AS w
    ANTI JOIN passed USING (score_id)
    LEFT JOIN later AS l USING (score_id)
    LEFT JOIN labels AS r USING (score_id)
    WHERE l.version IS NULL OR (w.revision, w._offset) = l.version
    ORDER BY place > 0, CASE WHEN place = 0 THEN score_id END, r.seen_by IS NOT NULL, place, exchange_at DESC, score_id
    LIMIT 1
)
SELECT
    s.score_id, s.connection, s.exchange_id,
    CASE
        WHEN s.anomaly THEN 'anomaly'
        WHEN s.disposition <> 'scored' THEN 'unscored'
        WHEN s.tier3_score BETWEEN 2.5 AND 3.5 OR s.tier2_score BETWEEN 0.4 AND 0.6 OR s.tier2_5_alignment BETWEEN 0.4 AND 0.6
            OR abs(s.tier2_score - (s.tier3_score - 1) / 4) >= 0.4 OR (s.tier2_flagged AND s.tier3_score >= 4)
            THEN 'unsure'
        ELSE 'routine'
    END AS stratum,
    p.seen_by, CASE WHEN p.place = 0 THEN 'random' ELSE 'priority' END AS pick
FROM log.scores AS s
JOIN picked AS p ON s.exchange_at = p.exchange_at AND s.score_id = p.score_id AND s.revision = p.revision AND s._offset = p._offset
WHERE s.project = $project
