-- purpose: the projects that a judge has answered about
-- grain: one row per project
-- parameters: none
SELECT DISTINCT project
FROM judgements
WHERE outcome = 'answered'
ORDER BY project
