"""The HTTP API: endpoints that parse requests, call the floors below, and encode answers."""
