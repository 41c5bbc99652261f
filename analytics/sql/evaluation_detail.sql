-- purpose: the latest request of an evaluation: the judge's prompts, and the dead letter's reason if it was set aside
--     instead of judged
-- grain: one row if the evaluation was ever requested. result_revision: attempt of the newest result, finished or
--     failed, NULL without one; set_aside: reason of the dead letter, NULL without one
-- parameters: $evaluation (its id)
WITH latest_request AS (
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
FROM latest_request AS a
