-- purpose: the exchange of a project that is most worth a look of this rater: unseen ones first, of these anomalies, then those the judge has not scored or, among the newest, was unsure of, then the newest; every fourth pick on average is drawn instead from what Tier 3 judged, of more than 200 000 from the newest, in an order of their times that has nothing to do with them and is the same for every rater
-- grain: one row at most; pick: random or priority; stratum: anomaly, unscored, unsure or routine; seen_by: people who have scored it; the newest: the days with the newest 20 000 exchanges that were not left out, and as many more as people have scored and are passed over; drawn ones are of the days with the newest 200 000 that Tier 3 judged
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
        len($skip::VARCHAR[]) + count(*) AS known
    FROM labels
), days AS (
    SELECT
        day, sum(sum(exchanges)) OVER newer AS found, sum(sum(anomalies)) OVER newer AS anomalous,
        sum(sum(exchanges) FILTER (disposition <> 'scored')) OVER newer AS unscored, sum(sum(tier3_count)) OVER newer AS judged
    FROM log.score_days($project, TIMESTAMP '1970-01-01', TIMESTAMP '9999-12-31')
    WHERE disposition <> 'sampling_skip'
    GROUP BY day
    WINDOW newer AS (ORDER BY day DESC)
), bound AS (
    -- The next item of a kind is among its first rows: as many as are skipped or seen, plus one. If there is none, the bound lies behind
    -- the end, because a scan without a bound would read everything.
    SELECT
        coalesce(max(day) FILTER (found >= 20000 + known), TIMESTAMP '1970-01-01') AS earliest,
        coalesce(max(day) FILTER (judged >= 200000), TIMESTAMP '1970-01-01') AS earliest_drawn,
        CASE
            WHEN max(anomalous) > 0 THEN coalesce(max(day) FILTER (anomalous > known), TIMESTAMP '1970-01-01')
            ELSE TIMESTAMP '9999-12-31'
        END AS earliest_anomaly,
        CASE
            WHEN max(unscored) > 0 THEN coalesce(max(day) FILTER (unscored > known), TIMESTAMP '1970-01-01')
            ELSE TIMESTAMP '9999-12-31'
        END AS earliest_unscored
    FROM days, turn
), mixed AS (
    -- A pseudo-random order derived from the times. It reads no ids, which are most of a score's size.
    SELECT exchange_at
    FROM log.scores
    SEMI JOIN (SELECT $project AS project FROM turn WHERE is_random) USING (project)
    WHERE project = $project AND tier3_state = 'scored' AND exchange_at >= (SELECT earliest_drawn FROM bound)
    ORDER BY (epoch_us(exchange_at) % 2147483647 * 1103515245 + (SELECT known FROM turn) // 500 * 715827882) % 2147483647
    LIMIT 1000
), drawn AS (
    SELECT score_id, exchange_at, revision, _offset, 0 AS place
    FROM log.scores
    SEMI JOIN mixed USING (exchange_at)
    ANTI JOIN passed USING (score_id)
    WHERE project = $project AND disposition <> 'sampling_skip' AND tier3_state = 'scored'
        AND exchange_at >= (SELECT earliest_drawn FROM bound)
), worth AS (
    SELECT score_id, exchange_at, revision, _offset, 1 AS place
    FROM log.scores
    WHERE project = $project AND exchange_at >= (SELECT earliest_anomaly FROM bound) AND anomaly AND disposition <> 'sampling_skip'
    UNION ALL
    SELECT score_id, exchange_at, revision, _offset, 2 AS place
    FROM log.scores
    WHERE project = $project AND exchange_at >= (SELECT earliest_unscored FROM bound) AND NOT anomaly
        AND disposition NOT IN ('scored', 'sampling_skip')
    UNION ALL
    SELECT
        score_id, exchange_at, revision, _offset,
        CASE
            WHEN log.is_unsure(tier2_score, tier2_5_alignment, tier2_flagged, tier3_score) THEN 3
            ELSE 4
        END AS place
    FROM log.scores
    WHERE project = $project AND exchange_at >= (SELECT earliest FROM bound) AND NOT anomaly AND disposition = 'scored'
    UNION ALL
    FROM drawn
), later AS (
    -- Most scores have one version, so it is cheaper to look for scores with more.
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    SEMI JOIN worth USING (score_id)
    WHERE project = $project AND revision > 0 AND exchange_at >= (SELECT min(exchange_at) FROM worth)
    GROUP BY score_id
), picked AS (
    SELECT w.*, coalesce(r.seen_by, 0) AS seen_by
    FROM worth AS w
    ANTI JOIN passed USING (score_id)
    LEFT JOIN later AS l USING (score_id)
    LEFT JOIN labels AS r USING (score_id)
    WHERE l.version IS NULL OR (w.revision, w._offset) = l.version
    ORDER BY
        place > 0,
        CASE WHEN place = 0 THEN (epoch_us(exchange_at) % 2147483647 * 1103515245 + (SELECT known FROM turn) // 500 * 715827882) % 2147483647 END,
        CASE WHEN place = 0 THEN score_id END, r.seen_by IS NOT NULL, place, exchange_at DESC, score_id
    LIMIT 1
)
SELECT
    s.score_id, s.connection, s.exchange_id, s.exchange_at,
    CASE
        WHEN s.anomaly THEN 'anomaly'
        WHEN s.disposition <> 'scored' THEN 'unscored'
        WHEN log.is_unsure(s.tier2_score, s.tier2_5_alignment, s.tier2_flagged, s.tier3_score) THEN 'unsure'
        ELSE 'routine'
    END AS stratum,
    p.seen_by, CASE WHEN p.place = 0 THEN 'random' ELSE 'priority' END AS pick
FROM log.scores AS s
JOIN picked AS p ON s.exchange_at = p.exchange_at AND s.score_id = p.score_id AND s.revision = p.revision AND s._offset = p._offset
WHERE s.project = $project
