"""One hypothesis profile for every test: no deadlines, because machines are shared, and the same examples on every CI run."""

import os

from hypothesis import settings

settings.register_profile("driftline", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("driftline")
