"""Groups of commands, exit codes, the start page, and errors of typing. Nothing here loads a command."""
