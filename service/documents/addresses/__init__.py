"""Parts of the addresses of lists and pages: the place to continue from, and the time."""
