"""The shared base of the API and the pages: the context of endpoints, authentication, limits, errors and bodies."""
