-- purpose: files that were imported completely, so that unchanged ones can be skipped
-- grain: one row per file
-- parameters: $source
SELECT path, size, modified_ns, settings_digest
FROM log.import_progress
WHERE source = $source AND complete
ORDER BY path
