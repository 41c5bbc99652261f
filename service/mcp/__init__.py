"""The tools of `driftline mcp`, through which assistants read a database (Model Context Protocol)."""
