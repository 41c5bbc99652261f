-- purpose: the last time that an evaluation was asked for: what the judge was sent, and whether the stage set it aside instead of judging it
-- grain: one row for an evaluation that was ever asked for; result_revision: attempt of the newest result, finished or failed, NULL while there is none; set_aside: why the request became a dead letter, NULL where it did not
-- parameters: $evaluation (its id)
WITH asked AS (
    SELECT *
    FROM log.evaluation_requests
    WHERE evaluation_id = $evaluation
    QUALIFY row_number() OVER (ORDER BY attempt DESC, _offset DESC) = 1
)
SELECT
    a.evaluation_id, a.connection, a.project, a.session_id, a.case_id, a.attempt, a.requested_at, a.system_prompt, a.user_prompt,
    (SELECT max(revision) FROM log.evaluations WHERE evaluation_id = $evaluation) AS result_revision,
    (
        SELECT arg_max(reason, rejected_at)
        FROM log.dead_letters AS d
        WHERE d.stage IN ('evaluation', 'decoding') AND d.source = 'evaluation-requests' AND d.position = a._offset
            AND coalesce(d.partition, a._partition) = a._partition
    ) AS set_aside
FROM asked AS a
