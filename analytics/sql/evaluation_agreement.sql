-- purpose: human scores of the exchanges of evaluated runs beside the evaluation of the run
-- grain: one row per current evaluation and rater. final_score: 0 to 10, NULL if the judge failed; human_score: mean
--     of the rater's newest scores (1 to 5); exchanges: their number
-- parameters: $project, $case (NULL: all)
WITH newest AS (
    SELECT project, subject_id AS score_id, reviewer AS rater, arg_max(score, (occurred_at, _offset)) AS human_score
    FROM log.reviews
    WHERE kind = 'human_score' AND score IS NOT NULL AND ($project IS NULL OR project = $project)
    GROUP BY project, subject_id, reviewer
), run_scores AS (
    SELECT s.connection, s.session_id, n.rater, avg(n.human_score) AS human_score, count(*) AS exchanges
    FROM newest AS n
    JOIN (SELECT DISTINCT project, score_id, connection, session_id FROM log.scores) AS s
        ON n.project = s.project AND n.score_id = s.score_id
    GROUP BY s.connection, s.session_id, n.rater
)
SELECT
    e.project, e.case_id, e.yardstick, e.judge_model, e.evaluation_id, e.connection, e.session_id, e.final_score, s.rater,
    s.human_score, s.exchanges
FROM log.current_evaluations($project) AS e
JOIN run_scores AS s ON e.connection = s.connection AND e.session_id = s.session_id
WHERE $case IS NULL OR e.case_id = $case
ORDER BY e.case_id, e.yardstick, e.connection, e.session_id, e.evaluation_id, s.rater
