"""The command line: it maps commands to their modules and expected errors to a clear line and an exit code."""
