"""Commands on the command line itself: help and completion."""
