"""Groups of commands, exit codes, the start page, and usage errors. No module here loads a command."""
