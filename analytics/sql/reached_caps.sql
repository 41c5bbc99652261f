-- purpose: the caps of projects and of the installation that left out questions, per UTC day or month
-- grain: one row per cap, project and period. cap: the outcome of the questions; project: as recorded, NULL for caps of
--     the installation; period: 2026-11-29 or 2026-11; reached_at: the time of the first question left out
-- parameters: $from (inclusive, of the time of the question)
SELECT
    outcome AS cap, CASE WHEN starts_with(outcome, 'project_') THEN project END AS project,
    CASE WHEN ends_with(outcome, '_day_cap') THEN strftime(judged_at, '%Y-%m-%d') ELSE strftime(judged_at, '%Y-%m') END AS period,
    min(judged_at) AS reached_at, count(*) AS questions
FROM judgements
WHERE outcome IN ('project_day_cap', 'project_month_cap', 'installation_day_cap', 'installation_month_cap')
    AND judged_at >= $from::TIMESTAMP
GROUP BY ALL
ORDER BY reached_at, cap, project
