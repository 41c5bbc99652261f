"""JSON documents that the API, the commands and the pages answer with: camelCase, times in ISO 8601 UTC."""
