"""What the API and the pages share: the context of endpoints, authentication, limits, errors and bodies."""
