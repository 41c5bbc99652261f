-- purpose: the next exchange for a rater to review. Without a stratum, exchanges that nobody has scored come first:
--     anomalies, then unscored ones, then those where the judge was unsure, then the newest; about every fourth pick is
--     random instead, from the exchanges that Tier 3 judged, in a pseudo-random order that is the same for every rater.
--     Scores of named queues do not count here: leaving out what they chose would make the random picks less random.
--     With a stratum of review_strata, every pick is random among its exchanges, those that nobody has scored first
-- grain: one row at most. pick: random, priority or interval (random in the given stratum); stratum: anomaly, unscored,
--     unsure or routine; seen_by: number of people who have scored it. Unsure and routine exchanges come from the days
--     with the newest 20,000 sampled exchanges, plus as many as are already scored or skipped; random ones from the days
--     with the newest 200,000 that Tier 3 judged
-- parameters: $project, $rater, $skip (list of score ids to skip), $class and $is_sampled (the stratum; NULL: none)
WITH labels AS (
    SELECT subject_id AS score_id, count(DISTINCT reviewer) AS seen_by, bool_or(reviewer = $rater) AS is_done
    FROM log.reviews
    WHERE kind = 'human_score' AND score IS NOT NULL AND queue IS NULL AND project = $project
    GROUP BY subject_id
), excluded AS (
    SELECT score_id FROM labels WHERE is_done
    UNION
    SELECT unnest($skip::VARCHAR[])
), progress AS (
    SELECT
        $class IS NOT NULL
            OR md5(concat_ws(chr(10), $project, $rater, len($skip::VARCHAR[]) + count(*) FILTER (is_done)))[1] < '4' AS is_random,
        len($skip::VARCHAR[]) + count(*) AS handled
    FROM labels
), days AS (
    SELECT
        day, sum(sum(exchanges)) OVER newer AS sampled, sum(sum(anomalies)) OVER newer AS anomalous,
        sum(sum(exchanges) FILTER (disposition <> 'scored')) OVER newer AS unscored, sum(sum(tier3_count)) OVER newer AS judged
    FROM log.score_days($project, TIMESTAMP '1970-01-01', TIMESTAMP '9999-12-31')
    WHERE disposition <> 'sampling_skip'
    GROUP BY day
    WINDOW newer AS (ORDER BY day DESC)
), bound AS (
    -- The next item of a stratum is among its first rows: one more than were handled. An empty stratum gets a bound after all data,
    -- because a scan without a bound would read every row.
    SELECT
        coalesce(max(day) FILTER (sampled >= 20000 + handled), TIMESTAMP '1970-01-01') AS earliest,
        coalesce(max(day) FILTER (judged >= 200000), TIMESTAMP '1970-01-01') AS earliest_drawn,
        CASE
            WHEN max(anomalous) > 0 THEN coalesce(max(day) FILTER (anomalous > handled), TIMESTAMP '1970-01-01')
            ELSE TIMESTAMP '9999-12-31'
        END AS earliest_anomaly,
        CASE
            WHEN max(unscored) > 0 THEN coalesce(max(day) FILTER (unscored > handled), TIMESTAMP '1970-01-01')
            ELSE TIMESTAMP '9999-12-31'
        END AS earliest_unscored
    FROM days, progress
), shuffled AS (
    -- A linear congruential hash of the times gives a pseudo-random order without reading ids, which are most of a score's size.
    -- After 500 handled exchanges the order starts elsewhere, by the golden section: with thirds it returned to the first place,
    -- and a large stratum seemed exhausted after 3,000 labels. Rows of equal times follow in the order of the table.
    SELECT rowid AS row
    FROM log.scores
    SEMI JOIN (SELECT $project AS project FROM progress WHERE is_random) USING (project)
    WHERE project = $project AND tier3_state = 'scored' AND exchange_at >= (SELECT earliest_drawn FROM bound)
        AND ($class IS NULL OR (
            (coalesce(sampling_probability, 1) < 1) = $is_sampled AND $class = CASE
                WHEN anomaly THEN 'anomaly'
                WHEN log.is_unsure(tier2_score, tier2_5_alignment, tier2_flagged, tier3_score) THEN 'unsure'
                ELSE 'routine'
            END
        ))
    ORDER BY (epoch_us(exchange_at) % 2147483647 * 1103515245 + (SELECT handled FROM progress) // 500 * 1327217885) % 2147483647, rowid
    LIMIT 1000
), random_candidates AS (
    SELECT score_id, exchange_at, revision, _offset, 0 AS pick_rank
    FROM log.scores AS s
    SEMI JOIN shuffled ON s.rowid = shuffled.row
    ANTI JOIN excluded USING (score_id)
    WHERE project = $project AND disposition <> 'sampling_skip' AND exchange_at >= (SELECT earliest_drawn FROM bound)
), candidates AS (
    SELECT score_id, exchange_at, revision, _offset, 1 AS pick_rank
    FROM log.scores
    WHERE project = $project AND exchange_at >= (SELECT earliest_anomaly FROM bound) AND anomaly AND disposition <> 'sampling_skip'
        AND $class IS NULL
    UNION ALL
    SELECT score_id, exchange_at, revision, _offset, 2 AS pick_rank
    FROM log.scores
    WHERE project = $project AND exchange_at >= (SELECT earliest_unscored FROM bound) AND NOT anomaly
        AND disposition NOT IN ('scored', 'sampling_skip') AND $class IS NULL
    UNION ALL
    SELECT
        score_id, exchange_at, revision, _offset,
        CASE
            WHEN log.is_unsure(tier2_score, tier2_5_alignment, tier2_flagged, tier3_score) THEN 3
            ELSE 4
        END AS pick_rank
    FROM log.scores
    WHERE project = $project AND exchange_at >= (SELECT earliest FROM bound) AND NOT anomaly AND disposition = 'scored'
        AND $class IS NULL
    UNION ALL
    FROM random_candidates
), later AS (
    -- Most scores have one revision, so it is cheaper to find those with more.
    SELECT score_id, max((revision, _offset)) AS version
    FROM log.scores
    SEMI JOIN candidates USING (score_id)
    WHERE project = $project AND revision > 0 AND exchange_at >= (SELECT min(exchange_at) FROM candidates)
    GROUP BY score_id
), selected AS (
    SELECT w.*, coalesce(r.seen_by, 0) AS seen_by
    FROM candidates AS w
    ANTI JOIN excluded USING (score_id)
    LEFT JOIN later AS l USING (score_id)
    LEFT JOIN labels AS r USING (score_id)
    WHERE l.version IS NULL OR (w.revision, w._offset) = l.version
    ORDER BY
        $class IS NOT NULL AND r.seen_by IS NOT NULL, pick_rank > 0,
        CASE WHEN pick_rank = 0
            THEN (epoch_us(exchange_at) % 2147483647 * 1103515245 + (SELECT handled FROM progress) // 500 * 1327217885) % 2147483647 END,
        CASE WHEN pick_rank = 0 THEN score_id END, r.seen_by IS NOT NULL, pick_rank, exchange_at DESC, score_id
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
    p.seen_by,
    CASE WHEN $class IS NOT NULL THEN 'interval' WHEN p.pick_rank = 0 THEN 'random' ELSE 'priority' END AS pick
FROM log.scores AS s
JOIN selected AS p ON s.exchange_at = p.exchange_at AND s.score_id = p.score_id AND s.revision = p.revision AND s._offset = p._offset
WHERE s.project = $project
