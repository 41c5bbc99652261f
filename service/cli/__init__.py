"""The command line: maps commands to modules, and expected errors to one clear line and an exit code."""
