"""The agents of a project: their versions, each beside the one before."""
