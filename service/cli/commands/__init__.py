"""The commands: each module adds its own to the command line."""
