"""JSON documents of the API, the commands and the pages: camelCase, times in ISO 8601 UTC."""
