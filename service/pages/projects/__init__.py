"""The fleet and the pages of a project."""
